"""The native executor as a whole: against the reference, in every format, and the same bits however steps are cut."""

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimaran import _native
from trimaran.base.errors import CheckpointError, ConfigError, UnsupportedError
from trimaran.base.formats import GROUP, ActivationFormat, KVFormat, WeightFormat, bundle_pages
from trimaran.kernels.native import NativeExecutor, choose_isa
from trimaran.kernels.open import open_executor
from trimaran.kernels.reference import ReferenceExecutor
from trimaran.kernels.step import ExecutorOptions, StepInputs
from trimaran.quant.convert import quantise

from .scales import in_format
from .tiny import CONFIG, Rows, program, random_tokens, random_weights, step

OPTIONS = ExecutorOptions(num_pages=60, max_rows=200, max_sequences=200, threads=2)
EXACT = replace(OPTIONS, kv_format=KVFormat.FP32, activations=ActivationFormat.FP32)
PROMPT = random_tokens(150)
PAGES = [7, 3, 12, 21, 5, 9, 30, 31, 32, 33]


def executor(fmt: WeightFormat = WeightFormat.INT4Z, options: ExecutorOptions = OPTIONS) -> NativeExecutor:
    return NativeExecutor(program(), random_weights(program(), fmt), options)


def logits(runner: NativeExecutor | ReferenceExecutor, *sequences: Rows) -> np.ndarray:
    out = runner.run(step(*sequences)).logits
    assert out is not None
    return out.copy()


# ---- results -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isa", _native.usable_isas())
@pytest.mark.parametrize("kv_format", list(KVFormat))
@pytest.mark.parametrize("fmt", list(WeightFormat))
def test_exact_activations_agree_with_the_reference(
    monkeypatch: pytest.MonkeyPatch, isa: str, kv_format: KVFormat, fmt: WeightFormat
) -> None:
    monkeypatch.setenv("TRIMARAN_ISA", isa)
    options = in_format(EXACT, kv_format, program())
    ours = executor(fmt, options)
    theirs = ReferenceExecutor(program(), random_weights(program(), fmt), options)
    assert (ours.name, ours.isa, ours.threads) == ("native", isa, 2)
    # A key may round to the other bf16 or integer.
    atol = {"fp32": 1e-4, "bf16": 3e-2, "int4": 1.0, "int8/int4": 0.5}.get(kv_format, 0.1)
    for rows in (Rows(PROMPT[:140], 0, PAGES), Rows(PROMPT[140:149], 140, PAGES), Rows(PROMPT[149:], 149, PAGES)):
        expected, out = logits(theirs, rows), ours.run(step(rows))
        assert out.logits is not None
        np.testing.assert_allclose(out.logits, expected, atol=atol)
        assert out.greedy.tolist() == out.logits.argmax(-1).tolist()


@pytest.mark.parametrize("isa", _native.usable_isas())
@pytest.mark.parametrize("fmt", [WeightFormat.INT8, WeightFormat.INT4, WeightFormat.INT4Z])
def test_int8_activations_stay_as_near_as_the_reference_does(
    monkeypatch: pytest.MonkeyPatch, isa: str, fmt: WeightFormat
) -> None:
    """Rounding ties may fall either way, so the two are not equal; but both must be as far from exact activations."""
    monkeypatch.setenv("TRIMARAN_ISA", isa)
    weights, rows = random_weights(program(), fmt), Rows(PROMPT, 0, PAGES)
    exact = logits(ReferenceExecutor(program(), weights, EXACT), rows)
    theirs = np.abs(logits(ReferenceExecutor(program(), weights, OPTIONS), rows) - exact).mean()
    ours = np.abs(logits(NativeExecutor(program(), weights, OPTIONS), rows) - exact).mean()
    assert ours == pytest.approx(theirs, rel=0.1)


def test_a_tied_table_is_packed_once() -> None:
    made = program(replace(CONFIG, tied=True))
    weights = random_weights(made, WeightFormat.INT8)
    apart = NativeExecutor(made, weights, OPTIONS)
    tied = NativeExecutor(made, {**weights, "model.embed_tokens": weights["lm_head"]}, OPTIONS)
    assert apart.weight_bytes - tied.weight_bytes == _native.matrix_bytes("int8", 80, 64, False, False)
    reference = ReferenceExecutor(made, {**weights, "model.embed_tokens": weights["lm_head"]}, EXACT)
    exact = NativeExecutor(made, {**weights, "model.embed_tokens": weights["lm_head"]}, EXACT)
    rows = Rows(PROMPT[:20], 0, PAGES)
    np.testing.assert_allclose(logits(exact, rows), logits(reference, rows), atol=1e-4)


# ---- the same bits -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isa", _native.usable_isas())
@pytest.mark.parametrize("options", [EXACT, OPTIONS], ids=["exact", "fast"])
@pytest.mark.parametrize("fmt", list(WeightFormat))
def test_chunks_neighbours_and_threads_do_not_change_a_bit(
    monkeypatch: pytest.MonkeyPatch, isa: str, options: ExecutorOptions, fmt: WeightFormat
) -> None:
    monkeypatch.setenv("TRIMARAN_ISA", isa)
    whole = logits(executor(fmt, replace(options, threads=1)), Rows(PROMPT, 0, PAGES))
    for threads in (1, 2, 5):
        runner = executor(fmt, replace(options, threads=threads))
        for start, end in ((0, 90), (90, 130), (130, 147), (147, 148), (148, 149), (149, 150)):
            other = Rows(random_tokens(start % 7 + 1, start), 0, [50, 51])
            out = logits(runner, other, Rows(PROMPT[start:end], start, PAGES), replace(other, pages=[52, 53]))
            first = len(other.tokens)
            assert out[first : first + end - start].tobytes() == whole[start:end].tobytes(), (threads, start)


@settings(max_examples=40, deadline=None)
@given(
    cuts=st.sets(st.integers(1, 149), max_size=12).map(sorted),
    lengths=st.lists(st.integers(1, 24), min_size=2, max_size=2),
    place=st.integers(0, 2),
    threads=st.integers(1, 4),
    fmt=st.sampled_from([WeightFormat.INT4Z, WeightFormat.INT8, WeightFormat.BF16]),
)
def test_any_cut_among_any_neighbours(
    cuts: list[int], lengths: list[int], place: int, threads: int, fmt: WeightFormat
) -> None:
    runner = executor(fmt, replace(OPTIONS, threads=threads))
    whole = logits(executor(fmt), Rows(PROMPT, 0, PAGES))
    again, at = [40, 1, 39, 2, 38, 4, 37, 6, 36, 8], 0
    for end in [*cuts, len(PROMPT)]:
        others = [Rows(random_tokens(n, n), 0, [50 + 2 * i, 51 + 2 * i]) for i, n in enumerate(lengths)]
        first = sum(lengths[:place])
        out = logits(runner, *others[:place], Rows(PROMPT[at:end], at, again), *others[place:])
        assert out[first : first + end - at].tobytes() == whole[at:end].tobytes()
        at = end
    runner.close()


def test_rows_on_the_null_page_leave_the_others_alone() -> None:
    alone = logits(executor(), Rows(PROMPT[:40], 0, PAGES))
    null = Rows(random_tokens(20, 4), 0, [0, 0])
    assert logits(executor(), null, Rows(PROMPT[:40], 0, PAGES), null)[20:60].tobytes() == alone.tobytes()


# ---- outputs -------------------------------------------------------------------------------------------------------


def test_logits_of_chosen_rows_only() -> None:
    everything = logits(executor(), Rows(PROMPT, 0, PAGES))
    runner = executor()
    some = runner.run(step(Rows(PROMPT, 0, PAGES), logits_rows=[3, 44]))
    assert some.logits is not None
    assert some.logits.tobytes() == everything[[3, 44]].tobytes()
    assert some.greedy.tolist() == everything[[3, 44]].argmax(-1).tolist()
    none = runner.run(step(Rows(PROMPT, 0, PAGES), logits_rows=[]))
    assert none.greedy.shape == (0,)


def test_greedy_outlives_the_next_step_and_logits_outlive_the_executor() -> None:
    runner = executor()
    first = runner.run(step(Rows(PROMPT[:9], 0, PAGES)))
    kept = first.greedy.tolist()
    second = runner.run(step(Rows(PROMPT[50:100], 0, PAGES)))
    assert first.greedy.tolist() == kept
    runner.close()
    runner.close()
    assert second.logits is not None
    assert np.isfinite(second.logits).all()
    with pytest.raises(ValueError, match="closed"):
        runner.run(step(Rows(PROMPT, 0, PAGES)))


# ---- what is refused -----------------------------------------------------------------------------------------------


def _with(**change: object) -> StepInputs:
    return replace(step(Rows(PROMPT[:20], 0, PAGES)), **change)  # type: ignore[arg-type]


def _ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": _ints(*[80] * 20)}, "token 80 at index 0"),
        ({"tokens": _ints(*[-1] * 20)}, "token -1"),
        ({"tokens": _ints(*[1] * 201), "starts": _ints(0, 201)}, "number of rows 201"),
        ({"starts": _ints(0, 19)}, "last row 19"),
        ({"starts": _ints(1, 20)}, "first row 1"),
        ({"starts": _ints(0, 0, 20), "contexts": _ints(0, 0), "slots": _ints(0, 1)}, "row 0 at index 1"),
        ({"starts": _ints(0, 10, 20)}, "starts must have one entry more"),
        ({"starts": _ints(0, 30, 20), "contexts": _ints(0, 0), "slots": _ints(0, 1)}, "row 30"),
        ({"contexts": _ints(-1)}, "context -1"),
        ({"contexts": _ints(141)}, "context 141"),
        ({"contexts": _ints(2**31 - 1)}, "context 2147483647"),
        ({"slots": _ints(3)}, "slot 3"),
        ({"slots": _ints(-1)}, "slot -1"),
        ({"page_tables": (np.full((3, 10), 60, np.int32),)}, "page 60"),
        ({"page_tables": (np.full((3, 10), -2, np.int32),)}, "page -2"),
        ({"page_tables": (np.ones((3, 1), np.int32),)}, "context 0"),
        ({"logits_rows": _ints(20)}, "logits row 20"),
        ({"logits_rows": _ints(*range(20), *[0] * 190)}, "number of logits rows 210"),
    ],
)
def test_a_step_out_of_range_is_named(change: dict[str, object], message: str) -> None:
    runner = executor()
    with pytest.raises(ValueError, match=message):
        runner.run(_with(**change))
    after = logits(runner, Rows(PROMPT, 0, PAGES))  # nothing was written, and the executor goes on
    assert after.tobytes() == logits(executor(), Rows(PROMPT, 0, PAGES)).tobytes()


def test_wrong_dtypes_are_refused() -> None:
    with pytest.raises(TypeError):
        executor().run(_with(tokens=np.ones(20, np.int64)))


def test_the_instruction_set_can_be_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_isa({}) == _native.usable_isas()[0]
    assert choose_isa({"TRIMARAN_ISA": ""}) == _native.usable_isas()[0]
    assert choose_isa({"TRIMARAN_ISA": "generic"}) == "generic"
    monkeypatch.setenv("TRIMARAN_ISA", "mmx")
    with pytest.raises(ConfigError, match=r"TRIMARAN_ISA='mmx'.*generic"):
        executor()


def test_shapes_without_a_kernel_are_refused() -> None:
    made = program(replace(CONFIG, intermediate=80))
    narrow = replace(quantise("w", np.zeros((64, 96), np.float32), WeightFormat.INT8), shape=(64, 80))
    with pytest.raises(UnsupportedError, match=r"down_proj has 80 inputs; as int8 .* multiple of 32"):
        NativeExecutor(made, {**random_weights(made), "model.layers.0.mlp.down_proj": narrow}, OPTIONS)
    made = program(replace(CONFIG, head_dim=8, rope=replace(CONFIG.rope, dims=8)))
    with pytest.raises(UnsupportedError, match="head_dim 8 is not a multiple of 16"):
        NativeExecutor(made, random_weights(made), OPTIONS)
    with pytest.raises(UnsupportedError, match="vocabulary of 524289"):
        NativeExecutor(replace(program(), vocab=2**19 + 1), random_weights(program()), OPTIONS)
    with pytest.raises(CheckpointError, match=r"model\.norm is missing"):
        NativeExecutor(program(), {k: v for k, v in random_weights(program()).items() if k != "model.norm"}, OPTIONS)
    with pytest.raises(ConfigError, match="page_size"):
        executor(options=replace(OPTIONS, page_size=8))


def test_open_by_name() -> None:
    runner = open_executor("native", program(), random_weights(program(), WeightFormat.INT4), OPTIONS)
    assert (runner.name, runner.num_pages, runner.page_size) == ("native", (60,), 16)
    runner.close()


# ---- formats -------------------------------------------------------------------------------------------------------


def test_sizes_are_those_of_the_python_formats() -> None:
    assert (_native.GROUP, _native.STRIP) == (GROUP, 32)
    for fmt in WeightFormat:
        for cols in (96, 128, 320):
            assert _native.row_bytes(fmt, cols) == fmt.row_bytes(cols)
        packed = _native.matrix_bytes(fmt, 70, 96, False, False)
        assert packed == -(-3 * 32 * fmt.row_bytes(96) // 128) * 128  # strips of 32 outputs
    for page_size in (16, 32, 48, 64, 80, 128, 256):
        assert _native.bundle_pages(page_size) == bundle_pages(page_size)
    for kv in KVFormat:
        for head_dim in (48, 64, 128, 144, 192, 256, 576):
            assert _native.kv_token_bytes(kv, head_dim) == kv.token_bytes(head_dim)
        runner = executor(options=in_format(OPTIONS, kv, program()))
        assert runner.kv_bytes == 60 * program().groups[0].page_bytes(kv, 16)


def test_a_step_in_two_halves_is_the_same_step_and_may_be_left_to_close():
    whole = executor().run(step(Rows(PROMPT, 0, PAGES)))
    runner = executor()
    runner.start(step(Rows(PROMPT, 0, PAGES)))
    time.sleep(0.01)  # the others may be through by now
    halves = runner.finish()
    assert np.array_equal(halves.logits, whole.logits)
    assert np.array_equal(halves.greedy, whole.greedy)
    runner.start(step(Rows(PROMPT, 0, PAGES)))
    del halves
    runner.close()


def threads_of_this_process() -> set[int]:
    return {int(task.name) for task in Path("/proc/self/task").iterdir()}


def test_pinned_threads_have_a_core_each_and_the_caller_keeps_its_own():
    cores, before = sorted(os.sched_getaffinity(0)), threads_of_this_process()
    runner = executor(options=replace(OPTIONS, threads=len(cores) + 1, pin_threads=True))
    helpers = sorted(threads_of_this_process() - before)  # numbered as they were started
    assert [os.sched_getaffinity(thread) for thread in helpers] == [{core} for core in [*cores[1:], cores[0]]]
    assert sorted(os.sched_getaffinity(0)) == cores
    runner.close()


def test_threads_are_not_pinned_unless_asked():
    cores, before = os.sched_getaffinity(0), threads_of_this_process()
    runner = executor()
    assert [os.sched_getaffinity(thread) for thread in threads_of_this_process() - before] == [cores]
    runner.close()


LEAVE_A_STEP = """
import numpy as np
from tests.kernels.test_native import PAGES, PROMPT, Rows, executor, step
for _ in range(8):
    runner = executor()
    runner.start(step(Rows(PROMPT, 0, PAGES)))
    del runner  # nobody closed it
    core = executor()._core
    NOBODY = np.zeros(0, np.uint64)
    held = step(Rows(PROMPT, 0, PAGES))
    core.read_tables(held.page_tables, ())
    arrays = (held.tokens, held.starts, held.contexts, held.slots, NOBODY, held.logits_rows)
    core.begin(*arrays, False)
    del core
"""


def test_a_step_that_nobody_finishes_ends_before_its_memory_goes() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", LEAVE_A_STEP], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


NO_MASKS = np.zeros((0, 0), np.uint32)


def test_nothing_else_may_be_done_while_a_step_runs() -> None:
    runner = executor()
    core = runner._core
    assert core is not None
    with pytest.raises(RuntimeError, match="no step is running"):
        core.finish_step()
    nobody = np.zeros(0, np.uint64)
    held = step(Rows(PROMPT, 0, PAGES))
    core.read_tables(held.page_tables, ())
    arrays = (held.tokens, held.starts, held.contexts, held.slots, nobody, held.logits_rows)
    core.begin(*arrays, True)
    nothing = ([], [], [], NO_MASKS, [], [])
    for forbidden in (
        lambda: core.begin(*arrays, True),
        lambda: core.choose(*nothing),
        lambda: core.read_tables((), ()),
        core.profile,
    ):
        with pytest.raises(RuntimeError, match="a step is running"):
            forbidden()
    core.finish_step()
    assert core.choose(*nothing) == []


TOO_MANY_THREADS = """
import resource
from dataclasses import replace
from trimaran.base.errors import ConfigError
from tests.kernels.test_native import OPTIONS, executor
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + (1 << 30)  # address space for the stacks of a few more
resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
try:
    executor(options=replace(OPTIONS, threads=10**6))
except ConfigError as error:
    print(error)
"""


def test_more_threads_than_the_system_has_are_a_configuration_error() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", TOO_MANY_THREADS], cwd=root, capture_output=True, text=True)
    assert "threads=1000000 cannot be started" in done.stdout, done.stderr[-2000:]


NOT_BUILT = """
import sys
sys.modules["trimaran._native"] = None
from trimaran.base.errors import UnsupportedError
try:
    import trimaran.kernels.native
except UnsupportedError as error:
    assert "was not built" in str(error)
    sys.exit(3)
"""


def test_a_core_that_was_not_built_is_told_in_words() -> None:
    assert subprocess.run([sys.executable, "-c", NOT_BUILT]).returncode == 3
