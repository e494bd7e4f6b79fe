from random import Random

from trimaran.bench.mix import CHAT, COMPLETIONS, draw, probes


def test_probes_are_functions_of_their_body():
    for probe in probes("m"):
        assert probe.body["temperature"] == 0 or "seed" in probe.body
        assert not probe.streams
        assert probe.status == 200


def test_the_same_seed_draws_the_same_requests():
    known = probes("m")
    assert [draw(Random(3), "m", known) for _ in range(5)] == [draw(Random(3), "m", known) for _ in range(5)]


def test_a_mix_has_everything_in_it():
    random, known = Random(0), probes("m")
    drawn = [draw(random, "m", known) for _ in range(600)]
    assert {request.path for request in drawn} == {CHAT, COMPLETIONS}
    assert {request.streams for request in drawn} == {True, False}
    assert {request.status for request in drawn} == {200, 400}
    assert any(request.cancel_events is not None for request in drawn)
    assert any(request.cancel_seconds is not None for request in drawn)
    fields = {name for request in drawn for name in request.body}
    assert {"top_k", "min_p", "repetition_penalty", "logit_bias", "stop", "n", "logprobs", "ignore_eos"} <= fields


def test_only_streams_are_hung_up_on_by_events():
    random = Random(1)
    for _ in range(300):
        request = draw(random, "m", probes("m"))
        assert request.cancel_events is None or request.streams
        assert request.cancel_seconds is None or not request.streams
