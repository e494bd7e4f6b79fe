from trimaran.bench.cases import Decode, Mixed, Prefill, cache_need, latency_cases, throughput_cases
from trimaran.bench.compare import Line, compare
from trimaran.bench.floor import Reading, Work
from trimaran.bench.machine import Machine

WORK = Work(
    weight_bytes=1 << 20, int8_ops=1000, fp32_ops=0, head_int8_ops=10, head_fp32_ops=0, readings=(Reading(64, 2),)
)


class Scripted:
    """A subject that answers from a list and writes down when it was asked."""

    def __init__(self, name, rates, order):
        self.name, self._rates, self._order = name, iter(rates), order

    def measure(self, case):
        self._order.append((case.name, self.name))
        return None if isinstance(case, Mixed) and self.name != "engine" else next(self._rates)

    def close(self):
        pass


def run(cases, rates, rounds):
    order = []
    subjects = [Scripted(name, values, order) for name, values in rates.items()]
    said = []
    report = compare("m", "formats", WORK, Machine(threads=1), cases, subjects, rounds, said.append)
    assert len(said) == len(order)
    return report, order


def test_subjects_alternate_within_every_round_and_case():
    rates = {"engine": range(1, 9), "executor": range(1, 9), "peer": range(1, 9)}
    _, order = run([Prefill(8), Decode(4, 2)], rates, rounds=2)
    assert [name for _, name in order] == ["engine", "executor", "peer"] * 4
    assert [case for case, _ in order[:6]] == ["prefill 8"] * 3 + ["decode 1 x depth 4"] * 3


def test_medians_and_the_ratio_to_the_best_peer():
    rates = {"engine": [30, 90, 60], "executor": [70, 70, 70], "slow": [19, 18, 17], "fast": [20, 25, 15]}
    report, _ = run([Decode(4, 2)], rates, rounds=3)
    [line] = report.lines
    assert line.median("engine") == 60
    assert report.peers == ("slow", "fast")
    assert report.ratio(line) == 3.0
    [case] = report.to_json()["cases"]
    assert case["rates"]["engine"] == [30, 90, 60]
    assert case["ratio_to_best_peer"] == 3.0
    row = report.to_text().splitlines()[-1]
    assert row.startswith("decode 1 x depth 4")
    assert "(30 - 90)" in row
    assert row.endswith("3.00")


def test_a_share_is_of_the_floor_of_its_moment():
    line = Line(Decode(4, 2), floors=[100, 200, 400], rates={"engine": [50, 120, 80]})
    assert (line.floor, line.share) == (200, 0.5)


def test_our_server_is_no_peer_and_has_a_ratio_of_its_own():
    report, _ = run([Decode(4, 2)], {"engine": [60], "http": [50], "peer": [20]}, rounds=1)
    assert report.peers == ("peer",)
    assert report.subjects == ["engine", "http", "peer"]
    [case] = report.to_json()["cases"]
    assert (case["ratio_to_best_peer"], case["ratio_over_http"]) == (3.0, 2.5)
    head, row = report.to_text().splitlines()[-2:]
    assert head.endswith("x best  http x")
    assert row.split()[-4:] == ["50", "20", "3.00", "2.50"]


def test_a_peer_far_behind_another_is_not_measured_again():
    rates = {"engine": [1, 1, 1], "slow": [10], "fast": [20, 20, 20]}
    report, order = run([Decode(4, 2)], rates, rounds=3)
    assert [name for _, name in order].count("slow") == 1
    assert report.lines[0].median("slow") == 10


def test_a_case_that_only_the_engine_has_is_reported_without_a_ratio():
    report, _ = run([Mixed(4)], {"engine": [5], "peer": []}, rounds=1)
    assert report.ratio(report.lines[0]) is None
    assert report.to_text().splitlines()[-1].endswith("-")


def test_floors_fall_with_context_and_rise_with_company():
    machine = Machine(threads=1)
    one, deep, many = Decode(128, 8), Decode(200_000, 8), Decode(128, 8, 16)
    assert deep.floor(WORK, machine) < one.floor(WORK, machine) < many.floor(WORK, machine)
    assert Prefill(1024).floor(WORK, machine) > one.floor(WORK, machine)
    assert Mixed(16).floor(WORK, machine) > 0


def test_cases_as_the_commands_ask_for_them():
    assert [case.name for case in latency_cases([16, 512], [128], 64)] == [
        "prefill 16",
        "prefill 512",
        "decode 1 x depth 128",
    ]
    names = [case.name for case in throughput_cases([1, 8], 128, 32, 96, 64)]
    assert names == ["decode 1 x depth 128", "decode 8 x depth 128", "end to end 8 x (128 + 96)", "mixed 64 requests"]


def test_mixed_lengths_are_the_same_every_time():
    assert Mixed(64).lengths() == Mixed(64).lengths()
    assert {16 <= prompt <= 512 and 8 <= output <= 128 for prompt, output in Mixed(64).lengths()} == {True}


def test_a_decode_case_needs_room_for_what_runs_while_others_prefill():
    tokens, sequences = cache_need(Decode(128, 32, 64))
    assert sequences == 64
    assert tokens >= 128 + 32 + 64 * 128 // 512
