"""Latent attention, its matrices and its indexer on the native executor: in every format, on every instruction set, and
the same bits however steps are cut."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from trimaran import _native
from trimaran.base.errors import UnsupportedError
from trimaran.base.formats import LATENT_FORMATS, ActivationFormat, KVFormat
from trimaran.kernels.native import NativeExecutor
from trimaran.kernels.reference import ReferenceExecutor
from trimaran.kernels.step import Executor, ExecutorOptions

from .latent import Shape, attention, logits, program, selection, tables, tokens
from .single_op import Part

OPTIONS = ExecutorOptions(
    kv_format=KVFormat.FP32,
    activations=ActivationFormat.FP32,
    num_pages=80,
    max_rows=320,
    max_sequences=16,
    threads=2,
)
DENSE = [
    Shape(heads=5, latent=64, rope=16, nope=24, value=40),
    Shape(heads=4, latent=80, rope=32, nope=16, value=24),
    Shape(heads=70, latent=32, rope=16, nope=16, value=16),
    Shape(heads=3, latent=512, rope=64, nope=128, value=128),
]
SPARSE = [replace(DENSE[0], top_k=8), replace(DENSE[2], top_k=200, index_heads=6, index_dim=48)]
SHAPES = [*DENSE, *SPARSE]


@pytest.fixture(params=_native.usable_isas())
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TRIMARAN_ISA", request.param)
    return str(request.param)


def native(shape: Shape, options: ExecutorOptions = OPTIONS) -> NativeExecutor:
    return NativeExecutor(*program(shape, attention(shape), tables(shape)), options)


def last(executor: Executor, *parts: Part) -> np.ndarray:
    """The result of the last 16 rows of a step."""
    total = sum(len(part.tokens) for part in parts)
    return logits(executor, *parts, rows=range(max(0, total - 16), total))


# Sparse attention with coarser index keys is left to the tests of the choice: a key that rounds to the other neighbour
# may let another token in.
@pytest.mark.parametrize(
    ("kv_format", "shape"),
    [(kv_format, shape) for kv_format in LATENT_FORMATS for shape in (*DENSE, SPARSE[1])]
    + [(KVFormat.FP32, SPARSE[0])],
    ids=str,
)
def test_latent_attention_is_the_reference(isa: str, kv_format: KVFormat, shape: Shape) -> None:
    """A prompt in two chunks beside another sequence, then one token each: across block and page borders."""
    options = replace(OPTIONS, kv_format=kv_format)
    ours = native(shape, options)
    theirs = ReferenceExecutor(*program(shape, attention(shape), tables(shape)), options)
    first, second = tokens(151), tokens(20, 1)
    near, far = [*range(40, 50)], [7, 3]
    for parts in (
        [Part(first[:130], 0, near)],
        [Part(second[:19], 0, far), Part(first[130:150], 130, near)],
        [Part(first[150:], 150, near), Part(second[19:], 19, far)],
    ):
        out, expected = last(ours, *parts), last(theirs, *parts)
        error = np.abs(out - expected)
        if kv_format is KVFormat.FP32:
            np.testing.assert_allclose(out, expected, atol=2e-5, rtol=1e-4)
        else:  # a value may round to the other neighbour, on each machine another: all that see its token move a little
            assert (np.median(error) < 1e-4, error.max() < 0.02) == (True, True)


@pytest.mark.parametrize("kv_format", LATENT_FORMATS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_prefill_decode_chunks_and_threads_make_the_same_bits(isa: str, kv_format: KVFormat, shape: Shape) -> None:
    text, pages = tokens(300), [*range(20, 1, -1)]
    options = replace(OPTIONS, kv_format=kv_format)
    whole = last(native(shape, options), Part(text, 0, pages))
    for threads in (1, 2, 3):
        executor = native(shape, replace(options, threads=threads))
        logits(executor, Part(text[:284], 0, pages), rows=[283])
        for i in range(284, 300):  # one by one: blocks of the few rows are shared among threads
            row = last(executor, Part(text[i : i + 1], i, pages))
            assert row.tobytes() == whole[i - 284 : i - 283].tobytes(), (threads, i)
    executor = native(shape, options)
    for start, end in pairwise([0, 5, 128, 200, 284, 293, 300]):
        chunk = last(executor, Part(tokens(3, start), 0, [20]), Part(text[start:end], start, [*range(50, 69)]))
        if start >= 284:
            assert chunk[-(end - start) :].tobytes() == whole[start - 284 : end - 284].tobytes()


@pytest.mark.parametrize("page_size", [16, 32, 64])
@pytest.mark.parametrize("kv_format", LATENT_FORMATS)
def test_the_size_and_place_of_pages_do_not_matter(kv_format: KVFormat, page_size: int) -> None:
    shape, text = SPARSE[0], tokens(200)
    options = replace(OPTIONS, kv_format=kv_format)
    whole = last(native(shape, options), Part(text, 0, range(1, 14)))
    placed = last(native(shape, replace(options, page_size=page_size)), Part(text, 0, [*range(33, 20, -1)]))
    assert placed.tobytes() == whole.tobytes()


@pytest.mark.parametrize("kv_format", LATENT_FORMATS)
def test_pages_take_what_formats_say(kv_format: KVFormat) -> None:
    made, _ = program(SPARSE[1], attention(SPARSE[1]), tables(SPARSE[1]))
    executor = native(SPARSE[1], replace(OPTIONS, kv_format=kv_format, page_size=32))
    assert executor.kv_bytes == 80 * made.groups[0].page_bytes(kv_format, 32)


# ---- the indexer ---------------------------------------------------------------------------------------------------


def chosen(executor: Executor, shape: Shape, *parts: Part, rows: Sequence[int] | None = None) -> list[list[int]]:
    """The positions that the rows choose."""
    return [[int(p) for p in row[: shape.top_k] if p >= 0] for row in logits(executor, *parts, rows=rows)]


@pytest.mark.parametrize("kv_format", [KVFormat.FP32, KVFormat.BF16, KVFormat.INT8])  # two formats of index keys
@pytest.mark.parametrize(("top_k", "heads", "dim"), [(8, 4, 32), (30, 14, 64), (40, 32, 128)])
def test_the_choice_is_the_references(isa: str, kv_format: KVFormat, top_k: int, heads: int, dim: int) -> None:
    shape = replace(DENSE[0], top_k=top_k, index_heads=heads, index_dim=dim)
    made = program(shape, selection(shape), tables(shape))
    options = replace(OPTIONS, kv_format=kv_format, max_sequences=320)
    text, pages = tokens(150), [*range(30, 40)]
    ours = chosen(NativeExecutor(*made, options), shape, Part(text, 0, pages))
    theirs = chosen(ReferenceExecutor(*made, options), shape, Part(text, 0, pages))
    assert all(row == sorted(row) for row in ours)
    assert [len(row) for row in ours] == [min(top_k, i + 1) for i in range(150)]
    if kv_format is KVFormat.FP32:
        assert ours == theirs
    else:  # a key that rounds to the other neighbour may change places with one of nearly its score
        assert sum(len(set(a) ^ set(b)) for a, b in zip(ours, theirs, strict=True)) <= 20


def test_equal_scores_negative_ones_and_nan(isa: str) -> None:
    """Of equal scores the lower positions are chosen; a token whose score is not a number comes last."""
    shape = replace(DENSE[0], top_k=8)
    made = tables(shape)
    made["iw"] = -np.abs(made["iw"])  # scores are at most 0, which -0 equals
    made["iq"][:] = 0
    executor = NativeExecutor(*program(shape, selection(shape), made), OPTIONS)
    text = tokens(40)
    assert chosen(executor, shape, Part(text, 0, [3, 1, 2]), rows=[39]) == [[*range(8)]]
    made["ik"][text[2]] = np.nan
    made["ik"][text[5], 3] = np.inf
    executor = NativeExecutor(*program(shape, selection(shape), made), OPTIONS)
    bad = [i for i in range(40) if text[i] in (text[2], text[5])]
    good = [i for i in range(40) if i not in bad]
    assert chosen(executor, shape, Part(text, 0, [3, 1, 2]), rows=[39]) == [good[:8]]
    few = chosen(executor, shape, Part(text[:7], 0, [3]), rows=[6])
    assert few == [[*range(7)]]  # no more than all


def test_scores_of_many_orders_of_magnitude(isa: str) -> None:
    """The choice is exact: every byte of a score counts."""
    shape = replace(DENSE[0], top_k=20, index_heads=2, index_dim=16)
    made = tables(shape)
    made["iq"][:] = np.float32(1)
    made["k_norm"][:], made["k_norm.bias"][:] = 0, 1e-3  # every key is the same: scores follow the query's weight
    rng = np.random.default_rng(0)
    made["k_norm"][:] = np.float32(1e-6)
    made["ik"] = rng.standard_normal(made["ik"].shape).astype(np.float32)
    ours, theirs = (
        chosen(kind(*program(shape, selection(shape), made), replace(OPTIONS, max_sequences=320)), shape, part)
        for kind in (NativeExecutor, ReferenceExecutor)
        for part in [Part(list(range(64)), 0, [3, 1, 2, 4])]
    )
    assert ours[-1] == sorted(ours[-1])
    assert len(set(ours[-1]) ^ set(theirs[-1])) <= 2


# ---- what must not be seen -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [DENSE[0], SPARSE[0]], ids=["dense", "sparse"])
@pytest.mark.parametrize("kv_format", LATENT_FORMATS)
@pytest.mark.parametrize("value", [np.inf, 3e38])
def test_what_a_page_held_before_does_not_matter(isa: str, kv_format: KVFormat, shape: Shape, value: float) -> None:
    options, text = replace(OPTIONS, kv_format=kv_format), [token % 20 for token in tokens(21)]
    clean = last(native(shape, options), Part(text, 0, [4, 5]))
    poison = tables(shape)
    for name in ("kv", "ik"):
        if name in poison:
            poison[name][20:] = value
    executor = NativeExecutor(*program(shape, attention(shape), poison), options)
    logits(executor, Part([30] * 32, 0, [4, 5]), rows=[0])
    assert last(executor, Part(text, 0, [4, 5])).tobytes() == clean.tobytes()
    logits(executor, Part([30] * 32, 0, [4, 5]), rows=[0])
    last(executor, Part(text[:20], 0, [4, 5]))
    assert last(executor, Part(text[20:], 20, [4, 5])).tobytes() == clean[-1:].tobytes()


@pytest.mark.parametrize("kv_format", LATENT_FORMATS)
@pytest.mark.parametrize("table", ["q", "kv"])
def test_one_bad_number_is_seen_by_its_sequence_alone(isa: str, kv_format: KVFormat, table: str) -> None:
    shape, options = DENSE[0], replace(OPTIONS, kv_format=kv_format)
    damaged = tables(shape)
    damaged[table][30, 3] = np.nan
    executor = NativeExecutor(*program(shape, attention(shape), damaged), options)
    text, other = [token % 20 for token in tokens(140)], [token % 20 for token in tokens(20, 1)]
    expected = logits(native(shape, options), Part(other, 0, [1, 2]), rows=[19])
    bad = [*text[:135], 30, *text[136:]]
    parts = Part(bad, 0, range(10, 19)), Part(other, 0, [1, 2])
    both = logits(executor, *parts, rows=[134, 135, 139, 159])
    assert both[3:].tobytes() == expected.tobytes()
    assert np.isfinite(both[0]).all()  # the row before
    assert not np.isfinite(both[1]).all()
    assert np.isfinite(both[2]).all() == (table == "q")  # nobody else reads a query
    again = logits(executor, Part(bad[139:], 139, range(10, 19)))  # decoding, blocks apart
    assert np.isfinite(again).all() == (table == "q")


@pytest.mark.parametrize(("change", "match"), [({"latent": 24}, "latent"), ({"rope": 8}, "rope")])
def test_widths_without_a_kernel_are_refused(change: dict[str, int], match: str) -> None:
    with pytest.raises(UnsupportedError, match=match):
        native(replace(DENSE[0], **change))
