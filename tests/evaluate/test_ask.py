"""Likelihoods of many continuations at once, held against one forward for each."""

from pathlib import Path

import numpy as np
import pytest

from trimaran.base.formats import KVFormat
from trimaran.evaluate.choices import Question, ask, judge
from trimaran.evaluate.measures import log_softmax
from trimaran.evaluate.play import Job, play
from trimaran.evaluate.scripts import Likelihood, answer, likelihoods
from trimaran.evaluate.sequences import Run, Sequences

from .tiny import opened, write_tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tiny") / "model")


def questions(count: int = 40) -> list[Question]:
    """Contexts and options of many lengths, some longer than what one step or one run of wanted rows takes."""
    rng = np.random.default_rng(2)
    found = []
    for number in range(count):
        context = tuple(rng.integers(0, 95, 1 + number % 23).tolist())
        options = tuple(tuple(rng.integers(0, 95, int(rng.integers(1, 9))).tolist()) for _ in range(1 + number % 4))
        found.append(Question("q", context, options, (1,) * len(options), 0))
    long = tuple(rng.integers(0, 95, 700).tolist())
    return [*found, Question("q", long, (long[:130], long[5:6]), (1, 1), 0), *found[:3]]


def alone(sequences: Sequences, context: tuple[int, ...], option: tuple[int, ...]) -> Likelihood:
    """One token a step."""
    slot = sequences.open(len(context) + len(option))
    assert slot is not None
    tokens = context + option
    total, greedy = 0.0, True
    for at in range(len(tokens) - 1):
        prefill = at < len(context) - 1
        rows = sequences.step([(slot, Run(at, tokens[at : at + 1], wanted=1))], prefill=prefill)[0]
        if at == len(context) - 2:
            sequences.hand_over(slot, at + 1)
        if not prefill:
            assert rows.logits is not None
            total += log_softmax(rows.logits)[0, tokens[at + 1]]
            greedy = greedy and int(rows.greedy[0]) == tokens[at + 1]
    sequences.free(slot)
    return Likelihood(total, greedy)


@pytest.mark.parametrize("fmt", [KVFormat.BF16, KVFormat.INT4])
def test_batches_shared_contexts_and_cut_runs_change_nothing(model: Path, fmt: KVFormat) -> None:
    sequences = opened(model, fmt, longest=900)
    asked = questions()
    jobs = [Job(each.length, likelihoods(each.context, each.options)) for each in asked]
    found = dict(play(sequences, jobs))
    assert sorted(found) == list(range(len(asked)))
    for number, each in enumerate(asked):
        for option, likely in zip(each.options, found[number], strict=True):
            expected = alone(sequences, each.context, option)
            assert likely.total == pytest.approx(expected.total, rel=1e-5, abs=1e-5)
            assert likely.greedy == expected.greedy
    sequences.close()


def test_every_page_and_slot_comes_back(model: Path) -> None:
    sequences = opened(model, longest=900)
    free = sorted(sequences._free_pages), sorted(sequences._free_slots)
    ask(sequences, questions(300))
    assert (sorted(sequences._free_pages), sorted(sequences._free_slots)) == free
    sequences.close()


@pytest.mark.parametrize("executor", ["native", "reference"])
@pytest.mark.parametrize("kv", [KVFormat.INT8, KVFormat.INT4])
def test_two_halves_of_one_format_are_the_whole(model: Path, kv: KVFormat, executor: str) -> None:
    whole, halves = opened(model, kv, executor=executor), opened(model, kv, kv, executor=executor)
    asked = questions(8)[:8]
    jobs = [[Job(each.length, likelihoods(each.context, each.options)) for each in asked] for _ in range(2)]
    assert dict(play(whole, jobs[0])) == dict(play(halves, jobs[1]))
    whole.close()
    halves.close()


def test_two_halves_of_other_formats_are_neither(model: Path) -> None:
    def totals(kv: KVFormat, prefill: KVFormat | None = None) -> list[float]:
        sequences = opened(model, kv, prefill)
        jobs = [Job(each.length, likelihoods(each.context, each.options)) for each in questions(6)[4:6]]
        found = [option.total for _, options in sorted(play(sequences, jobs)) for option in options]
        sequences.close()
        return found

    mixed, coarse, fine = totals(KVFormat.INT4, KVFormat.FP32), totals(KVFormat.INT4), totals(KVFormat.FP32)
    assert mixed != coarse
    assert mixed != fine


def test_what_is_handed_over_is_what_one_token_at_a_time_gives(model: Path) -> None:
    sequences = opened(model, KVFormat.INT4, KVFormat.BF16)
    each = questions(20)[17]
    found = dict(play(sequences, [Job(each.length, likelihoods(each.context, each.options))]))[0]
    for option, likely in zip(each.options, found, strict=True):
        assert likely.total == pytest.approx(alone(sequences, each.context, option).total, rel=1e-6)
    sequences.close()


def test_answers_are_greedy_and_end_at_a_stop(model: Path) -> None:
    sequences = opened(model, longest=64)

    def say(stops: set[int]) -> list[int]:
        return dict(play(sequences, [Job(64, answer([1, 2, 3], 20, stops))]))[0]

    said = say(set())
    assert len(said) == 20
    assert say({said[7]}) == said[: said.index(said[7])]
    likely = dict(play(sequences, [Job(64, likelihoods([1, 2, 3], [said, said[1:]]))]))[0]
    assert [each.greedy for each in likely] == [True, False]
    sequences.close()


def test_a_tie_or_no_number_is_not_right() -> None:
    question = Question("q", (1,), ((2,), (3,)), (1, 1), right=0)

    def right(first: float, second: float) -> bool:
        return judge(question, [Likelihood(first, False), Likelihood(second, False)]).right

    assert right(-1, -2)
    assert not right(-2, -1)
    assert not right(-1, -1)
    assert not right(float("nan"), -1)
    assert not right(-1, float("nan"))


def test_likelihoods_count_per_byte_where_options_differ_in_length() -> None:
    question = Question("q", (1,), ((2,), (3, 4, 5)), (1, 10), right=1)
    assert judge(question, [Likelihood(-1, False), Likelihood(-5, False)]).right
