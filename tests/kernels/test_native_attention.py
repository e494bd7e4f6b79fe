"""Paged attention of the native executor: head shapes, page formats, long contexts, and what it must never read."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from trimaran import _native
from trimaran.base.formats import KVFormat
from trimaran.kernels.native import NativeExecutor
from trimaran.kernels.program import Attention, Program, RopeSpec
from trimaran.kernels.reference import ReferenceExecutor
from trimaran.kernels.step import Executor, ExecutorOptions
from trimaran.kernels.weights import Weight

from .scales import in_format
from .single_op import Part, buffer, fp32, named, program, step

OPTIONS = ExecutorOptions(kv_format=KVFormat.FP32, num_pages=80, max_rows=320, max_sequences=16, threads=2)
TABLE = 64  # rows of the table that queries, keys and values are drawn from
SHAPES = [  # heads, kv_heads, head_dim, rotated dimensions
    (9, 3, 64, 64),
    (4, 4, 16, 16),
    (3, 1, 48, 32),
    (8, 2, 128, 128),
    (14, 2, 32, 16),
    (16, 1, 64, 64),
    (2, 2, 256, 64),
    (6, 2, 192, 192),
    (2, 1, 144, 144),
    (2, 1, 576, 64),
]


@pytest.fixture(params=_native.usable_isas())
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TRIMARAN_ISA", request.param)
    return str(request.param)


def attention(heads: int, kv_heads: int, head_dim: int, rotated: int) -> tuple[Program, dict[str, Weight]]:
    """A program whose input is q, k and v and whose logits are what attention returns."""
    width = (heads + 2 * kv_heads) * head_dim
    x = np.random.default_rng(3).standard_normal((TABLE, width), np.float32)
    out = buffer("out", heads * head_dim)
    op = Attention(
        out, buffer("x", width), 0, 0, heads, kv_heads, head_dim, 2 * head_dim**-0.5, RopeSpec(1000.0, rotated)
    )
    weights = [fp32("x", x)]
    made = program([op], weights, out, kv_heads=kv_heads, head_dim=head_dim, context=1024)
    return made, named(weights)


def tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 16, count).tolist()


def attend(executor: Executor, *parts: Part, rows: Sequence[int] | None = None) -> np.ndarray:
    """Attention's output of ``rows`` (at most 16 of a step), else of the last rows."""
    total = sum(len(part.tokens) for part in parts)
    wanted = range(max(0, total - 16), total) if rows is None else rows
    out = executor.run(step(*parts, logits_rows=wanted)).logits
    assert out is not None
    return out.copy()


def native(shape: tuple[int, int, int, int], options: ExecutorOptions = OPTIONS) -> NativeExecutor:
    return NativeExecutor(*attention(*shape), options)


@pytest.mark.parametrize("kv_format", list(KVFormat))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_attention_is_the_reference(isa: str, kv_format: KVFormat, shape: tuple[int, int, int, int]) -> None:
    """A prompt in two chunks beside another sequence, then one token each: across tile, block and page borders."""
    options = in_format(OPTIONS, kv_format, attention(*shape)[0])
    ours, theirs = native(shape, options), ReferenceExecutor(*attention(*shape), options)
    first, second = tokens(151), tokens(20, 1)
    near, far = [*range(40, 50)], [7, 3]
    for parts in (
        [Part(first[:130], 0, near)],
        [Part(second[:19], 0, far), Part(first[130:150], 130, near)],
        [Part(first[150:], 150, near), Part(second[19:], 19, far)],
    ):
        out, expected = attend(ours, *parts), attend(theirs, *parts)
        if kv_format.integer or kv_format.value.startswith(
            "fp8"
        ):  # a sum in another order may round to the other integer
            error = np.abs(out - expected)
            assert (np.median(error) < 5e-5, error.max() < 0.02) == (True, True)
        else:
            np.testing.assert_allclose(out, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kv_format", [f for f in KVFormat if f.integer])
@pytest.mark.parametrize("shape", [(9, 3, 64, 64), (4, 1, 256, 256)], ids=str)
def test_values_of_zeros_weigh_as_others_do(isa: str, kv_format: KVFormat, shape: tuple[int, int, int, int]) -> None:
    """Their scale is 0: of all of a value, of its beginning, of a whole block, and of all tokens but the last."""
    made, weights = attention(*shape)
    heads, kv_heads, head_dim, _ = shape
    x = np.array(weights["x"].data)
    values = x[:, (heads + kv_heads) * head_dim :].reshape(TABLE, kv_heads, head_dim)
    values[0:4] = 0
    values[4:8, :, :64] = 0
    values[8:12] *= 1e-25
    for text in (tokens(150), [1] * 130 + tokens(20), [4] * 130 + tokens(20), [2] * 40 + [9], [2] * 40 + [20]):
        options = in_format(OPTIONS, kv_format, made)
        zeroed = named([fp32("x", x)])
        out = attend(NativeExecutor(made, zeroed, options), Part(text, 0, [*range(40, 50)]))
        expected = attend(ReferenceExecutor(made, zeroed, options), Part(text, 0, [*range(40, 50)]))
        error = np.abs(out - expected)
        assert (np.median(error) < 5e-5, error.max() < 0.02) == (True, True)


@pytest.mark.parametrize("kv_format", list(KVFormat))
@pytest.mark.parametrize("shape", [(9, 3, 64, 64), (16, 1, 64, 64), (14, 2, 32, 16), (4, 1, 256, 256)], ids=str)
def test_prefill_decode_chunks_and_threads_make_the_same_bits(
    isa: str, kv_format: KVFormat, shape: tuple[int, int, int, int]
) -> None:
    text, pages = tokens(300), [*range(20, 1, -1)]
    options = in_format(OPTIONS, kv_format, attention(*shape)[0])
    whole = attend(native(shape, options), Part(text, 0, pages))
    for threads in (1, 2, 3):
        executor = native(shape, replace(options, threads=threads))
        attend(executor, Part(text[:284], 0, pages))
        for i in range(284, 300):  # one by one: blocks of the few rows are shared among threads
            row = attend(executor, Part(text[i : i + 1], i, pages))
            assert row.tobytes() == whole[i - 284 : i - 283].tobytes(), (threads, i)
    executor = native(shape, options)
    for start, end in ((0, 5), (5, 128), (128, 200), (200, 284), (284, 293), (293, 300)):
        chunk = attend(executor, Part(text[start:end], start, [*range(50, 69)]))
        if start >= 284:
            assert chunk[-(end - start) :].tobytes() == whole[start - 284 : end - 284].tobytes()


@pytest.mark.parametrize("page_size", [16, 32, 64])
def test_the_size_and_place_of_pages_do_not_matter(isa: str, page_size: int) -> None:
    shape, text = (9, 3, 64, 64), tokens(200)
    whole = attend(native(shape), Part(text, 0, range(1, 14)))
    placed = attend(native(shape, replace(OPTIONS, page_size=page_size)), Part(text, 0, [*range(33, 20, -1)]))
    assert placed.tobytes() == whole.tobytes()


@pytest.mark.parametrize("kv_format", list(KVFormat))
@pytest.mark.parametrize("value", [np.inf, 3e38])
def test_what_a_page_held_before_does_not_matter(isa: str, kv_format: KVFormat, value: float) -> None:
    """Pages are full of infinities and NaNs that an earlier sequence left, or of a number with a giant scale; only
    visible tokens may be read."""
    shape, text = (9, 3, 64, 64), tokens(21)
    options = in_format(OPTIONS, kv_format, attention(*shape)[0])
    clean = attend(native(shape, options), Part(text, 0, [4, 5]))
    made, weights = attention(*shape)
    poison = np.array(weights["x"].data)
    poison[20:] = value
    executor = NativeExecutor(made, named([fp32("x", poison)]), options)
    attend(executor, Part([30] * 32, 0, [4, 5]))
    assert attend(executor, Part(text, 0, [4, 5])).tobytes() == clean.tobytes()
    attend(executor, Part([30] * 32, 0, [4, 5]))
    attend(executor, Part(text[:20], 0, [4, 5]))
    assert attend(executor, Part(text[20:], 20, [4, 5])).tobytes() == clean[-1:].tobytes()


@pytest.mark.parametrize("kv_format", list(KVFormat))
@pytest.mark.parametrize(
    ("part", "value"), [("query", np.nan), ("query", np.inf), ("key", np.nan), ("value", np.nan), ("value", np.inf)]
)
def test_one_bad_number_is_seen_by_its_sequence_alone(isa: str, kv_format: KVFormat, part: str, value: float) -> None:
    shape = (9, 3, 64, 64)
    made, weights = attention(*shape)
    damaged = np.array(weights["x"].data)
    damaged[30, {"query": 70, "key": 9 * 64 + 5, "value": 12 * 64 + 5}[part]] = value  # of the first kv head
    options = in_format(OPTIONS, kv_format, made)
    executor = NativeExecutor(made, named([fp32("x", damaged)]), options)
    text, other = tokens(140), tokens(20, 1)
    expected = attend(native(shape, options), Part(other, 0, [1, 2]), rows=[19])
    bad = [*text[:135], 30, *text[136:]]
    both = attend(executor, Part(bad, 0, range(10, 19)), Part(other, 0, [1, 2]), rows=[134, 135, 139, 159])
    assert both[3:].tobytes() == expected.tobytes()
    assert np.isfinite(both[0]).all()  # the row before
    assert not np.isfinite(both[1]).all()
    assert np.isfinite(both[2]).all() == (part == "query")  # nobody else reads a query
    again = attend(executor, Part(bad[139:], 139, range(10, 19)))  # decoding, blocks apart
    assert np.isfinite(again).all() == (part == "query")


def test_a_shared_prefix_page_serves_two_sequences(isa: str) -> None:
    shape, prefix = (9, 3, 64, 64), tokens(32)
    executor = native(shape)
    attend(executor, Part([*prefix, 1, 2], 0, [1, 2, 3]))
    both = attend(executor, Part([5], 32, [1, 2, 4]), Part([6, 7], 32, [1, 2, 5]))
    assert both[:1].tobytes() == attend(native(shape), Part([*prefix, 5], 0, [6, 7, 8]))[-1:].tobytes()
    assert both[1:].tobytes() == attend(native(shape), Part([*prefix, 6, 7], 0, [6, 7, 8]))[-2:].tobytes()


def test_many_sequences_with_chunks_and_single_tokens_in_one_step(isa: str) -> None:
    shape = (9, 3, 64, 64)
    executor = native(shape)
    texts = [tokens(n, n) for n in (40, 1, 17, 129, 3)]
    cached = [39, 0, 0, 100, 2]
    pages = [[10 * i + j + 1 for j in range(9)] for i in range(5)]
    for text, done, own in zip(texts, cached, pages, strict=True):
        if done:
            attend(executor, Part(text[:done], 0, own))
    parts = [Part(text[done:], done, own) for text, done, own in zip(texts, cached, pages, strict=True)]
    ends = np.cumsum([len(part.tokens) for part in parts]) - 1
    together = attend(executor, *parts, rows=ends.tolist())
    for row, text in zip(together, texts, strict=True):
        assert row.tobytes() == attend(native(shape), Part(text, 0, range(60, 70)))[-1].tobytes()
