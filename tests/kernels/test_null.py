import time
from dataclasses import replace

import numpy as np
import pytest

from trimaran.kernels.null import NullExecutor, NullModel
from trimaran.kernels.open import open_executor
from trimaran.kernels.step import ExecutorOptions, StepInputs

OPTIONS = ExecutorOptions(num_pages=9, page_size=16, max_rows=64, max_sequences=4)
TABLE = np.array([[1, 2, 3], [4, 5, 6]], np.int32)


def executor(**model) -> NullExecutor:
    null = NullModel(**({"vocab": 300, "context": 48} | model))
    return NullExecutor(null.program(), {}, OPTIONS, null)


def step(*chunks: tuple[int, int, list[int]], table: np.ndarray = TABLE, want_logits: bool = False) -> StepInputs:
    """Chunks are (slot, context, tokens); the last row of each gives logits."""
    ends = np.cumsum([len(tokens) for _, _, tokens in chunks])
    return StepInputs(
        tokens=np.concatenate([tokens for _, _, tokens in chunks]).astype(np.int32),
        starts=np.array([0, *ends], np.int32),
        contexts=np.array([context for _, context, _ in chunks], np.int32),
        slots=np.array([slot for slot, _, _ in chunks], np.int32),
        page_tables=(table,),
        logits_rows=(ends - 1).astype(np.int32),
        want_logits=want_logits,
    )


def test_tokens_depend_on_neither_chunks_nor_neighbours():
    tokens = list(range(40))
    whole = executor().run(step((0, 0, tokens))).greedy[0]
    cut = executor()
    cut.run(step((0, 0, tokens[:7]), (1, 0, [9] * 20)))
    assert cut.run(step((1, 20, [9]), (0, 7, tokens[7:]))).greedy[1] == whole


@pytest.mark.parametrize("changed", [0, 17, 39])
def test_every_token_of_the_history_counts(changed):
    tokens = list(range(40))
    other = tokens.copy()
    other[changed] += 1
    assert executor().run(step((0, 0, tokens))).greedy[0] != executor().run(step((0, 0, other))).greedy[0]


def test_a_wrong_page_changes_the_token():
    tokens = list(range(33))
    right, wrong = executor(), executor()
    for e in (right, wrong):
        e.run(step((0, 0, tokens[:32]), (1, 0, tokens[1:32])))
    mixed = np.array([[4, 2, 3], [4, 5, 6]], np.int32)
    assert right.run(step((0, 32, [32]))).greedy[0] != wrong.run(step((0, 32, [32]), table=mixed)).greedy[0]


def test_logits_agree_with_the_greedy_token():
    outputs = executor().run(step((0, 0, [1, 2]), (1, 0, [3]), want_logits=True))
    assert outputs.logits is not None
    assert outputs.logits.shape == (2, 300)
    assert outputs.logits.dtype == np.float32
    np.testing.assert_array_equal(outputs.logits.argmax(axis=1), outputs.greedy)
    assert executor().run(step((0, 0, [1, 2]), (1, 0, [3]))).logits is None


def generate(e: NullExecutor, count: int) -> list[int]:
    tokens = [1]
    for i in range(count):
        tokens.append(int(e.run(step((0, i, [tokens[-1]]))).greedy[0]))
    return tokens[1:]


def test_eos_comes_only_where_it_was_configured():
    assert 3 in generate(executor(eos_id=3, eos_one_in=4), 45)
    assert 3 not in generate(executor(eos_id=3, eos_one_in=10**9), 45)
    assert len(set(generate(executor(), 45))) > 30


def test_a_step_takes_its_time():
    e = executor(step_seconds=0.02, token_seconds=0.001)
    began = time.perf_counter()
    e.run(step((0, 0, [1] * 10)))
    assert time.perf_counter() - began >= 0.03


@pytest.mark.parametrize(
    "bad",
    [
        step((0, 0, [300])),
        step((0, 0, [1]), (0, 0, [1])),
        step((0, 0, [1]), table=np.zeros((2, 3), np.int32)),
        step((0, 0, [1]), table=np.full((2, 3), 9, np.int32)),
        step((0, 0, [1]), (1, 0, [1]), table=np.ones((2, 3), np.int32)),
        step((0, 0, [1] * 65), table=np.arange(1, 9, dtype=np.int32).reshape(1, 8)),
    ],
)
def test_inputs_that_break_the_contract_are_bugs(bad):
    with pytest.raises(AssertionError):
        executor().run(bad)


def test_two_sequences_may_read_one_page():
    e = executor()
    e.run(step((0, 0, list(range(16)))))
    shared = np.array([[1, 2, 3], [1, 5, 6]], np.int32)
    outputs = e.run(step((0, 16, [7]), (1, 16, [7]), table=shared))
    assert outputs.greedy[0] == outputs.greedy[1]


def test_it_opens_by_name():
    assert open_executor("null", NullModel().program(), {}, OPTIONS).name == "null"


def in_groups(inputs: StepInputs, *tables: np.ndarray) -> StepInputs:
    return replace(inputs, page_tables=tables)


def test_a_group_with_a_window_reads_that_and_no_more():
    e = executor(windows=(20,))
    tokens = list(range(40))
    e.run(step((0, 0, tokens)))
    last = e.run(step((0, 40, [5]))).greedy[0]  # sees 21 and later
    gone = np.array([[0, 2, 3]], np.int32)
    assert e.run(in_groups(step((0, 40, [5])), gone)).greedy[0] == last
    other = executor(windows=(20,))
    other.run(step((0, 0, [9] * 21 + tokens[21:])))
    assert other.run(step((0, 40, [5]))).greedy[0] == last
    other.run(step((0, 0, [9] * 22 + tokens[22:])))
    assert other.run(step((0, 40, [5]))).greedy[0] != last


def test_a_page_within_a_window_must_be_there():
    e = executor(windows=(20,))
    e.run(step((0, 0, list(range(40)))))
    with pytest.raises(AssertionError, match="nobody was given"):
        e.run(in_groups(step((0, 35, [1] * 5)), np.array([[1, 0, 3]], np.int32)))
    with pytest.raises(AssertionError, match="nobody was given"):  # the first of these tokens sees page 0
        e.run(in_groups(step((0, 34, [1] * 6)), np.array([[0, 2, 3]], np.int32)))


def test_each_group_has_pages_of_its_own_and_each_counts():
    def final(*tables: np.ndarray) -> int:
        e = executor(windows=(None, 20))
        e.run(in_groups(step((0, 0, list(range(40))), (1, 0, list(range(1, 21)))), TABLE, TABLE[::-1]))
        return int(e.run(in_groups(step((0, 40, [5])), *tables)).greedy[0])

    right, wrong = TABLE[::-1], np.array([[4, 3, 6]], np.int32)
    assert len({final(TABLE, right), final(np.array([[5, 2, 3]], np.int32), right), final(TABLE, wrong)}) == 3
    assert final(TABLE, right) == final(TABLE, right)
