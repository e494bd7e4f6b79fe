"""A prompt computed by one engine and continued by another, against one engine that does both."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimaran.base.errors import PageIntegrityError, TransferError
from trimaran.base.failures import error_of
from trimaran.base.formats import KVFormat
from trimaran.base.messages import Failed, Submit
from trimaran.base.sampling import SamplingParams
from trimaran.engine.config import EngineConfig
from trimaran.engine.decoding import DecodeEngine
from trimaran.engine.load import load_engine
from trimaran.engine.prefilling import PrefillEngine
from trimaran.kernels.null import NullModel

from .driving import PAGE, greedy, null_engine, run
from .pooled import Pair, check_whole
from .tiny_model import write_model

CONTEXT = 256


def null_pair(*, decode_pages: int | None = None, prefill_pages: int | None = None, **options: Any) -> Pair:
    options.setdefault("context", CONTEXT)
    prefill = null_engine(role="prefill", pages=prefill_pages, **options)
    decode = null_engine(role="decode", pages=decode_pages, **options)
    assert isinstance(prefill, PrefillEngine)
    assert isinstance(decode, DecodeEngine)
    return Pair(prefill, decode)


def model_pair(path: Any, prefill: dict[str, Any], decode: dict[str, Any], **both: Any) -> Pair:
    one, other = (
        load_engine(EngineConfig.from_json({"model": str(path), "role": role, **formats, **both}))
        for role, formats in (("prefill", prefill), ("decode", decode))
    )
    assert isinstance(one, PrefillEngine)
    assert isinstance(other, DecodeEngine)
    return Pair(one, other)


@dataclass(frozen=True)
class Wanted:
    family: int
    prompt: int
    params: SamplingParams
    priority: int

    def submit(self, name: str) -> Submit:
        tokens = [self.family] * 40 + list(range(110))
        return Submit(name, tokens[: self.prompt], self.params, priority=self.priority)


wanted = st.builds(
    Wanted,
    family=st.integers(0, 2),
    prompt=st.integers(1, 150),
    params=st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.0, 1.0]),
        seed=st.integers(-3, 3),
        max_tokens=st.integers(1, 40),
        min_tokens=st.integers(0, 1),
        stop_token_ids=st.sampled_from([(), tuple(range(0, 512, 7))]),
        logprobs=st.sampled_from([None, 2]),
        presence_penalty=st.sampled_from([0.0, 1.5]),
        repetition_penalty=st.sampled_from([1.0, 1.2]),
    ),
    priority=st.integers(0, 2),
)


@settings(max_examples=60)
@given(
    st.lists(wanted, min_size=1, max_size=10),
    st.integers(16, 40),
    st.integers(1, 6),
    st.integers(6, 64),
    st.sampled_from([(None,), (None, 20), (None, 50, 7)]),
    st.booleans(),
    st.sampled_from([0, 4]),
)
def test_two_engines_give_the_tokens_of_one(requests, pages, seqs, rows, windows, overlap, drafted):
    options = {
        "speculative_ngram": drafted,
        "max_num_seqs": seqs,
        "max_num_batched_tokens": max(rows, seqs),
        "overlap": overlap,
        "null": NullModel(vocab=512, context=CONTEXT, eos_id=3, eos_one_in=40, windows=windows),
    }
    submits = [request.submit(str(number)) for number, request in enumerate(requests)]
    alone = run(null_engine(pages=pages * len(windows), **options), *submits)
    pair = null_pair(decode_pages=pages * len(windows), prefill_pages=pages * len(windows), **options)
    answers = pair.run(*submits)
    for name, answer in alone.items():
        other = answers[name]
        assert (other.tokens, other.finish, other.stopped_by) == (answer.tokens, answer.finish, answer.stopped_by)


def test_a_prompt_that_comes_again_is_handed_over_from_its_last_page_on():
    pair = null_pair()
    prompt = list(range(5 * PAGE + 3))
    first = pair.run(Submit("a", prompt, greedy(4)))["a"]
    assert pair.moved == 6
    again = pair.run(Submit("b", prompt, greedy(4)))["b"]
    assert pair.moved == 7
    assert again.ids == first.ids
    assert (first.cached, again.cached) == (0, 5 * PAGE)


def test_sequences_that_give_way_are_parked_and_not_computed_again():
    options = {"max_num_seqs": 4, "max_num_batched_tokens": 64}
    submits = [Submit(str(n), [n] * 40, greedy(100)) for n in range(4)]
    alone = run(null_engine(context=CONTEXT, **options), *submits)
    pair = null_pair(decode_pages=18, **options)
    answers = pair.run(*submits)
    assert {name: answer.ids for name, answer in answers.items()} == {n: a.ids for n, a in alone.items()}
    decode = pair.decode.stats()
    assert decode.preemptions > 0
    assert decode.generated_tokens == 400
    assert pair.moved == 4 * 3, "each prompt came once"


def test_what_a_sequence_lost_is_neither_parked_nor_given_away():
    """A page changed hands by a fault of ours: its bytes are somebody else's, and would come back as the sequence's."""
    submits = [Submit(str(n), [n] * 40, greedy(100)) for n in range(4)]
    pair = null_pair(decode_pages=18, max_num_seqs=4, max_num_batched_tokens=64)
    decode, spoilt = pair.decode, set()
    keep = decode._scheduler._parking.keep

    def lose_a_page(sequence):
        if not spoilt:
            spoilt.add(sequence.id)
            decode.cache.groups[0].pool.release(sequence.pages[0].refs[1])
        return keep(sequence)

    decode._scheduler._parking.keep = lose_a_page
    answers = pair.run(*submits)
    [lost] = spoilt
    assert error_of(answers[lost].failure).__class__ is PageIntegrityError
    assert {name for name, answer in answers.items() if answer.finish == "length"} == set("0123") - spoilt
    alone = run(null_engine(context=CONTEXT, max_num_seqs=4), *submits)
    assert all(answers[name].ids == alone[name].ids for name in set("0123") - spoilt)
    assert decode.cache.unused
    decode.cache.check()


def test_a_page_that_a_prompt_lost_is_not_exported():
    pair = null_pair(max_num_seqs=4, max_num_batched_tokens=16)
    handing = pair.prefill.prefill(Submit("a", list(range(60)), greedy(4)), (0,), 60.0)
    for _ in range(3):
        pair.prefill.step()
    pair.prefill.finish()
    pair.prefill.export(handing, 0, 0, 1, KVFormat.BF16)
    pair.prefill.cache.groups[0].pool.release(handing.sequence.pages[0].refs[0])
    with pytest.raises(PageIntegrityError):
        pair.prefill.export(handing, 0, 0, 1, KVFormat.BF16)


def test_what_a_worker_computed_is_dropped_once_it_is_not_trusted():
    pair = null_pair()
    bad, good = list(range(5 * PAGE + 3)), list(range(100, 100 + 5 * PAGE + 3))
    for name, prompt in (("bad", bad), ("good", good)):
        pair.submit(Submit(name, prompt, greedy(2 * PAGE)), source=name)
    answers = pair.run()
    pair.decode.distrust("bad")
    assert pair.decode.stats().pages_distrusted == 5 + 2, "of the prompt, and those that steps have filled behind it"
    for name, prompt, again in (("bad", bad, 6), ("good", good, 1)):
        moved = pair.moved
        assert pair.run(Submit(name * 2, prompt, greedy(2 * PAGE)))[name * 2].ids == answers[name].ids
        assert pair.moved == moved + again
    pair.decode.distrust("bad")
    assert pair.decode.stats().pages_distrusted == 7, "there was nothing left"


def test_answers_that_read_what_is_not_trusted_end():
    pair = null_pair(max_num_seqs=8)
    bad, good = list(range(3 * PAGE)), list(range(100, 100 + 3 * PAGE))
    alone = run(null_engine(context=CONTEXT), Submit("good", good, greedy(60)))["good"]
    pair.submit(Submit("bad", bad, greedy(60)), source="bad")
    while not (pair.answers.get("bad") and pair.answers["bad"].ids):
        pair.step()
    pair.submit(Submit("good", good, greedy(60)), source="good")
    pair.submit(Submit("shares", [*bad, 1, 2, 3], greedy(60)), source="good")
    while not all(pair.answers.get(name) and pair.answers[name].ids for name in ("good", "shares")):
        pair.step()
    assert pair.decode.sequences[2].sources == {"bad", "good"}
    pair.submit(Submit("comes", [7] * 40, greedy(2)), source="bad")
    pair.decode.distrust("bad")
    answers = pair.run()
    for name in ("bad", "shares", "comes"):
        failure = answers[name].failure
        assert failure is not None
        assert failure.kind == "CanaryError", name
    assert (answers["good"].ids, answers["good"].finish) == (alone.ids, "length")


def test_pages_of_unequal_pools_are_found_by_their_own_kind_only(tmp_path):
    pair = model_pair(
        write_model(tmp_path / "m"),
        {"weight_format": "bf16", "kv_format": "bf16"},
        {"weight_format": "int8", "kv_format": "int8"},
        executor="reference",
        kv_memory_bytes=2**20,
        max_num_batched_tokens=64,
    )
    prompt = [5 + n for n in range(2 * PAGE)]
    first = pair.run(Submit("a", prompt, greedy(PAGE + 2)))["a"]
    assert pair.moved == 2
    longer = prompt + first.ids  # the page behind the prompt was filled by steps: nobody finds it
    pair.run(Submit("b", longer, greedy(2)))
    assert pair.moved == 2 + 2
    local = run(pair.decode, Submit("c", prompt, greedy(2)))["c"]
    assert local.cached == 0, "a prompt that the decode engine computes finds nothing that came from elsewhere"


def test_pages_of_equal_pools_are_found_by_all(tmp_path):
    formats = {"weight_format": "bf16", "kv_format": "int8"}
    pair = model_pair(write_model(tmp_path / "m"), formats, formats, executor="reference", kv_memory_bytes=2**20)
    prompt = [5 + n for n in range(2 * PAGE)]
    first = pair.run(Submit("a", prompt, greedy(PAGE + 2)))["a"]
    longer = prompt + first.ids
    pair.run(Submit("b", longer, greedy(2)))
    assert pair.moved == 2 + 1
    assert run(pair.decode, Submit("c", longer, greedy(2)))["c"].cached == 3 * PAGE


@pytest.mark.parametrize("formats", [("bf16", "int8"), ("int8", "int8/int4"), ("int4", "bf16")])
def test_equal_formats_give_the_tokens_of_one_engine(tmp_path, formats):
    path = write_model(tmp_path / "m")
    options = {"weight_format": formats[0], "kv_format": formats[1]}
    both = {"executor": "native", "threads": 1, "kv_memory_bytes": 2**21, "max_num_batched_tokens": 64}
    submits = [
        Submit(
            str(n), [3 + (n + k) % 90 for k in range(10 + 20 * n)], SamplingParams(temperature=t, seed=n, max_tokens=20)
        )
        for n, t in enumerate((0, 0.8, 0, 1.2))
    ]
    alone = load_engine(EngineConfig.from_json({"model": str(path), **options, **both}))
    pair = model_pair(path, options, options, **both)
    one, two = run(alone, *submits), pair.run(*submits)
    assert {name: answer.ids for name, answer in two.items()} == {name: answer.ids for name, answer in one.items()}
    for engine in (alone, pair.prefill, pair.decode):
        engine.close()


def test_equal_formats_give_the_tokens_of_one_engine_on_a_real_model(smollm2):
    both = {"threads": 1, "kv_memory_bytes": 2**26, "max_num_batched_tokens": 64, "max_model_len": 512}
    submits = [
        Submit("a", list(range(1000, 1090)), greedy(8)),
        Submit("b", list(range(90, 140)), greedy(8, logprobs=1)),
    ]
    alone = load_engine(EngineConfig.from_json({"model": str(smollm2), **both}))
    pair = model_pair(smollm2, {}, {}, **both)
    one, two = run(alone, *submits), pair.run(*submits)
    assert {name: answer.tokens for name, answer in two.items()} == {
        name: answer.tokens for name, answer in one.items()
    }
    for engine in (alone, pair.prefill, pair.decode):
        engine.close()


def test_answers_of_unequal_pools_depend_on_the_request_alone(tmp_path):
    path = write_model(tmp_path / "m")
    formats = ({"weight_format": "int8", "kv_format": "bf16"}, {"weight_format": "int4", "kv_format": "fp8"})
    both: dict[str, Any] = {"executor": "native", "threads": 1, "max_num_batched_tokens": 64, "max_num_seqs": 5}
    turn = [3 + k % 90 for k in range(30)]
    submits = [Submit(str(n), turn + [9 + n] * 7 * n, greedy(60, ignore_eos=True)) for n in range(6)]
    alone = {}
    for submit in submits:
        pair = model_pair(path, *formats, **both)
        alone[submit.id] = pair.run(submit)[submit.id].ids
    page = 2 * 2 * 16 * (2 * 16 + 2 * 4)  # layers, heads, tokens; keys and values of 16 dimensions, scales
    crowded = model_pair(path, formats[0], formats[1] | {"kv_memory_bytes": 14 * page}, **both)
    answers = crowded.run(*submits)
    assert crowded.decode.stats().preemptions > 0
    assert {name: answer.ids for name, answer in answers.items()} == alone
    again = crowded.run(*[Submit("again" + submit.id, submit.prompt, submit.sampling) for submit in submits])
    assert {name: again["again" + name].ids for name in alone} == alone


@pytest.mark.parametrize("steps", range(1, 8))
def test_a_cancel_at_any_stage_frees_all_pages(steps):
    pair = null_pair(max_num_seqs=2, max_num_batched_tokens=16)
    for name in "abc":
        pair.submit(Submit(name, list(range(60)), greedy(3)))
    for _ in range(steps):
        pair.step()
    for name in "abc":
        pair.cancel(name)
    for _ in range(3):
        pair.step()
    assert pair.decode.idle
    assert pair.prefill.idle
    for engine in (pair.prefill, pair.decode):
        check_whole(engine)


def test_pages_that_nobody_fetches_are_free_after_their_time():
    prefill = null_pair().prefill
    handing = prefill.prefill(Submit("a", [1] * 40, greedy(3)), (0,), 0.0)
    while not prefill.idle:
        prefill.step()
    assert handing.token is not None
    assert not prefill.cache.unused
    assert prefill.reap(float("inf")) == ["a"]
    assert handing.lost
    check_whole(prefill)


def test_pages_that_nobody_fills_are_free_once_the_request_has_failed():
    pair = null_pair()
    pair.submit(Submit("a", [1] * 40, greedy(3)))
    pair.decode.step()
    assert pair.decode.expects("a")
    assert pair.decode.stalled
    assert pair.decode.reap(float("inf")) == ["a"]
    pair.decode.fail("a", TransferError("the prompt did not come"))
    [failed] = pair.decode.step()
    assert isinstance(failed, Failed)
    assert failed.kind == "TransferError"
    check_whole(pair.decode)


def test_a_prompt_of_which_one_token_is_left_is_not_drafted():
    options = {"max_num_seqs": 2, "max_num_batched_tokens": PAGE, "speculative_ngram": 4}
    prompt = [1, 2, 3, 4] * (PAGE // 4) + [1]
    alone = run(null_engine(context=CONTEXT, **options), Submit("a", prompt, greedy(6)))
    assert null_pair(**options).run(Submit("a", prompt, greedy(6)))["a"].ids == alone["a"].ids
