"""Pages that one executor exports and another imports, in their own format and converted."""

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimaran.base.errors import ConfigError, TransferError
from trimaran.base.formats import IndexCache, KVFormat
from trimaran.kernels.null import NullExecutor, NullModel
from trimaran.kernels.open import open_executor
from trimaran.kernels.program import Attention, Program, RopeSpec
from trimaran.kernels.step import Executor, ExecutorOptions, Int32
from trimaran.kernels.weights import Weight

from . import latent, single_op
from .scales import in_format
from .tiny import CONFIG, Rows, program, random_tokens, random_weights, step

OPTIONS = ExecutorOptions(num_pages=12, max_rows=64, max_sequences=64, threads=2)
KINDS = ["reference", "native"]
PROMPT = random_tokens(45)
NEXT = [5, 6, 7]


OneOp = tuple[Program, dict[str, Weight]]


def heads(dims: int = 48) -> OneOp:
    """Attention over rows of a table."""
    width, out = 4 * dims, single_op.buffer("out", 2 * dims)
    x = np.random.default_rng(3).standard_normal((64, width), np.float32)
    op = Attention(out, single_op.buffer("x", width), 0, 0, 2, 1, dims, dims**-0.5, RopeSpec(1000.0, 48))
    weights = [single_op.fp32("x", x)]
    return single_op.program([op], weights, out, kv_heads=1, head_dim=dims), single_op.named(weights)


def latents() -> OneOp:
    """Latent attention over the tokens that an indexer chooses."""
    shape = latent.Shape(heads=4, latent=64, rope=32, nope=32, value=32, top_k=24)
    return latent.program(shape, latent.attention(shape), latent.tables(shape))


def wide_heads() -> OneOp:
    """So wide that they have more scales in some formats, and are transformed in larger parts in others."""
    return heads(192)


@pytest.fixture(params=[heads, wide_heads, latents], ids=lambda made: made.__name__)
def one_op(request: pytest.FixtureRequest) -> OneOp:
    made: OneOp = request.param()
    return made


def formats_of(one_op: OneOp) -> list[KVFormat]:
    """Those that the program's caches can have."""
    found = []
    for fmt in KVFormat:
        with suppress(ConfigError):
            one_op[0].groups[0].page_bytes(fmt, 16)
            found.append(fmt)
    return found


def same_index_keys(one_op: OneOp, a: KVFormat, b: KVFormat) -> bool:
    """Whether an indexer's keys beside latents have the same format in both, so that they are copied."""
    indexed = any(isinstance(cache, IndexCache) for cache in one_op[0].groups[0].caches)
    return indexed and KVFormat.FP32 not in (a, b)


def filled(kind: str, one_op: OneOp, fmt: KVFormat) -> Executor:
    """An executor of a single op, whose pages 2, 5 and 3 hold the same 48 tokens in whatever format."""
    executor = open_executor(kind, *one_op, in_format(OPTIONS, fmt, one_op[0]))
    executor.run(single_op.step(single_op.Part(list(range(48)), 0, [2, 5, 3]), logits_rows=[47]))
    return executor


def pages(*numbers: int) -> Int32:
    return np.array(numbers, np.int32)


def model(kind: str, fmt: KVFormat, **changes: int) -> Executor:
    """A tiny model whose kv heads are 48 wide, which leaves int4 a group that is half empty."""
    made = program(replace(CONFIG, head_dim=48))
    return open_executor(kind, made, random_weights(made), replace(in_format(OPTIONS, fmt, made), **changes))


def logits(executor: Executor, rows: Rows) -> np.ndarray:
    out = executor.run(step(rows)).logits
    assert out is not None
    return out.copy()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("fmt", list(KVFormat))
def test_a_sequence_goes_on_elsewhere_as_if_it_had_stayed(kind: str, fmt: KVFormat) -> None:
    stays, takes = model(kind, fmt), model(kind, fmt)
    logits(stays, Rows(PROMPT, 0, [4, 9, 2]))
    logits(takes, Rows(random_tokens(40, 8), 0, [7, 3, 11]))  # whatever the pages held
    takes.import_pages(0, pages(7, 11, 1), stays.export_pages(0, pages(4, 9, 2), fmt))
    assert stays.layout == takes.layout
    there, here = Rows(NEXT, len(PROMPT), [7, 11, 1]), Rows(NEXT, len(PROMPT), [4, 9, 2])
    assert logits(takes, there).tobytes() == logits(stays, here).tobytes()


@pytest.mark.parametrize("fmt", list(KVFormat))
def test_converted_pages_are_what_writing_their_numbers_gives(kind: str, one_op: OneOp, fmt: KVFormat) -> None:
    if fmt not in formats_of(one_op):
        pytest.skip("a format that latents do not have")
    written, exact, wide = (filled(kind, one_op, each) for each in (fmt, KVFormat.FP32, KVFormat.BF16))
    moved = pages(3, 5)
    assert exact.export_pages(0, moved, fmt).tobytes() == written.export_pages(0, moved, fmt).tobytes()
    exact.import_pages(0, moved, wide.export_pages(0, moved, KVFormat.FP32))
    assert wide.export_pages(0, moved, fmt).tobytes() == exact.export_pages(0, moved, fmt).tobytes()


@pytest.mark.parametrize("fmt", list(KVFormat))
@pytest.mark.parametrize("own", [KVFormat.BF16, None])
def test_pages_may_be_given_in_memory_that_was_used_before(kind: str, own: KVFormat | None, fmt: KVFormat) -> None:
    executor = model(kind, own or fmt)
    logits(executor, Rows(PROMPT, 0, [4, 9, 2]))
    fresh = executor.export_pages(0, pages(4, 9), fmt)
    used = np.full(fresh.shape, 0xAA, np.uint8)
    assert executor.export_pages(0, pages(4, 9), fmt, used) is used
    assert used.tobytes() == fresh.tobytes()


@pytest.mark.parametrize("narrow", list(KVFormat))
def test_narrow_pages_convert_as_their_widened_numbers(kind: str, one_op: OneOp, narrow: KVFormat) -> None:
    if narrow not in formats_of(one_op):
        pytest.skip("a format that latents do not have")
    source, exact = filled(kind, one_op, narrow), filled(kind, one_op, KVFormat.FP32)
    moved = pages(2, 5)
    exact.import_pages(0, moved, source.export_pages(0, moved, KVFormat.FP32))
    for fmt in formats_of(one_op):
        if fmt.keys is not narrow.keys and fmt.values is not narrow.values and not same_index_keys(one_op, fmt, narrow):
            assert source.export_pages(0, moved, fmt).tobytes() == exact.export_pages(0, moved, fmt).tobytes()


def test_what_does_not_fit_is_refused_and_nothing_written(kind: str) -> None:
    executor = model(kind, KVFormat.INT8)
    logits(executor, Rows(PROMPT, 0, [4, 9, 2]))
    everything = pages(*range(1, OPTIONS.pages_of(0)))
    before = executor.export_pages(0, everything, KVFormat.INT8)
    good = executor.export_pages(0, pages(4, 9), KVFormat.INT8)
    for wrong in (pages(0, 4), pages(4, 12), pages(-1, 4), pages(4, 9).astype(np.int64), pages(4, 9)[None]):
        with pytest.raises(TransferError):
            executor.export_pages(0, wrong, KVFormat.INT8)
        with pytest.raises(TransferError):
            executor.import_pages(0, wrong, good)
    with pytest.raises(TransferError, match="cache group 1"):
        executor.export_pages(1, pages(4), KVFormat.INT8)
    for data in (good[:1], good[:, :-1], good.view(np.int8), good.ravel()):
        with pytest.raises(TransferError, match="uint8"):
            executor.import_pages(0, pages(4, 9), data)
    with pytest.raises(TransferError, match="twice"):
        executor.import_pages(0, pages(4, 4), good)
    assert executor.export_pages(0, everything, KVFormat.INT8).tobytes() == before.tobytes()
    assert not executor.export_pages(0, pages(), KVFormat.BF16).size


def test_latents_refuse_formats_that_they_cannot_have(kind: str) -> None:
    executor = filled(kind, latents(), KVFormat.BF16)
    refused = [fmt for fmt in KVFormat if fmt not in formats_of(latents())]
    for fmt in refused:
        with pytest.raises(ConfigError, match="latents"):
            executor.export_pages(0, pages(2), fmt)


def test_a_layout_names_what_differs() -> None:
    ours = model("reference", KVFormat.INT8).layout
    ours.check_same(model("reference", KVFormat.BF16).layout.converted(KVFormat.INT8))
    for changed, name in (
        (replace(ours, version=ours.version + 1), "version"),
        (replace(ours, page_format=KVFormat.FP8), "page format is fp8, ours is int8"),
        (replace(ours, page_size=32), "page size"),
        (replace(ours, executor="native"), "executor"),
        (replace(ours, groups=()), "groups"),
    ):
        with pytest.raises(TransferError, match=name):
            ours.check_same(changed)


@settings(deadline=None, max_examples=25)
@given(moved=st.lists(st.tuples(*[st.integers(1, 11)] * 2), unique_by=lambda pair: pair[1]), seed=st.integers(0, 99))
@pytest.mark.parametrize("kind", KINDS)
def test_any_pages_come_where_they_were_sent(kind: str, moved: list[tuple[int, int]], seed: int) -> None:
    """Random bytes in random pages: those named change, in their order, and no others."""
    source, target = model(kind, KVFormat.INT8_INT4), model(kind, KVFormat.INT8_INT4)
    everything = pages(*range(1, 12))
    shape = (11, source.layout.page_bytes(0))
    data = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
    source.import_pages(0, everything, data)
    target.import_pages(0, everything, ~data)
    expected = ~data
    from_pages, to_pages = pages(*(pair[0] for pair in moved)), pages(*(pair[1] for pair in moved))
    expected[to_pages - 1] = data[from_pages - 1]
    target.import_pages(0, to_pages, source.export_pages(0, from_pages, KVFormat.INT8_INT4))
    assert target.export_pages(0, everything, KVFormat.INT8_INT4).tobytes() == expected.tobytes()


def test_the_null_executors_history_moves_with_its_pages() -> None:
    """All formats hold the same history: the next token is the same, and another where a page went astray."""

    def null(fmt: KVFormat) -> NullExecutor:
        made = NullModel(vocab=CONFIG.vocab, context=CONFIG.context)
        return NullExecutor(made.program(), {}, replace(OPTIONS, kv_format=fmt), made)

    source = null(KVFormat.BF16)
    source.run(step(Rows(PROMPT, 0, [4, 9, 2])))
    expected = source.run(step(Rows([1], 45, [4, 9, 2]))).greedy[0]
    for fmt in KVFormat:
        target = null(fmt)
        target.import_pages(0, pages(5, 1, 3), source.export_pages(0, pages(4, 9, 2), fmt))
        assert target.run(step(Rows([1], 45, [5, 1, 3]))).greedy[0] == expected
        assert target.run(step(Rows([1], 45, [1, 5, 3]))).greedy[0] != expected


@pytest.mark.parametrize("target", list(KVFormat))
@pytest.mark.parametrize("source", list(KVFormat))
def test_native_converts_every_pair_as_the_reference_does(one_op: OneOp, source: KVFormat, target: KVFormat) -> None:
    """By what attention makes of the pages; a number on the edge between two codes may be rounded to either."""
    if not {source, target} <= set(formats_of(one_op)):
        pytest.skip("a format that latents do not have")
    found = []
    for kind in KINDS:
        taker = filled(kind, one_op, target)
        taker.import_pages(0, pages(7, 8, 9), filled(kind, one_op, source).export_pages(0, pages(2, 5, 3), target))
        rows = single_op.Part(list(range(5)), 48, [7, 8, 9, 10])
        out = taker.run(single_op.step(rows, logits_rows=range(5))).logits
        assert out is not None
        found.append(out.copy())
    spread = np.abs(found[0]).max()
    assert np.abs(found[1] - found[0]).max() < 0.02 * spread


def test_pages_rest_between_steps_only(kind: str) -> None:
    executor = model(kind, KVFormat.BF16)
    data = executor.export_pages(0, pages(4), KVFormat.BF16)
    executor.start(step(Rows(PROMPT, 0, [4, 9, 2])))
    with pytest.raises(AssertionError, match="a step is running"):
        executor.export_pages(0, pages(4), KVFormat.BF16)
    with pytest.raises(AssertionError, match="a step is running"):
        executor.import_pages(0, pages(4), data)
    executor.finish()
    assert executor.export_pages(0, pages(4), KVFormat.BF16).tobytes() != data.tobytes()
    executor.close()


@pytest.mark.parametrize("part", ["key", "value"])
@pytest.mark.parametrize("source", list(KVFormat))
def test_numbers_that_are_not_finite_stay_visible_in_every_format(source: KVFormat, part: str) -> None:
    made, weights = heads()
    x = np.array(weights[single_op.X].data)
    x[20, (2 if part == "key" else 3) * 48 + 5] = np.inf  # two query heads come first
    damaged = made, single_op.named([single_op.fp32(single_op.X, x)])
    giver = filled("native", damaged, source)
    for target in KVFormat:
        taker = filled("native", (made, weights), target)
        taker.import_pages(0, pages(7, 8, 9), giver.export_pages(0, pages(2, 5, 3), target))
        rows = single_op.Part(list(range(2)), 48, [7, 8, 9, 10])
        out = taker.run(single_op.step(rows, logits_rows=range(2))).logits
        assert out is not None
        assert not np.isfinite(out).all(axis=1).any(), target
