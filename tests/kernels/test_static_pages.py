"""Pages whose scales are given beforehand, and layers that are exempt from the format."""

from dataclasses import replace

import numpy as np
import pytest

from trimaran.base.errors import ConfigError, TransferError
from trimaran.base.formats import CacheGroup, HeadsCache, KVFormat
from trimaran.kernels import reference_ops as ops
from trimaran.kernels.kv_scales import KVScales
from trimaran.kernels.open import open_executor
from trimaran.kernels.program import Program
from trimaran.kernels.step import Executor, ExecutorOptions
from trimaran.kernels.wide_layers import describe_pages, keep_wide, parse_layers

from .scales import in_format, static_scales
from .test_native_attention import Part, attend, attention
from .tiny import Rows, program, random_tokens, random_weights, step

KINDS = ["reference", "native"]
STATIC = [KVFormat.FP8_STATIC, KVFormat.INT8_STATIC]
OPTIONS = ExecutorOptions(num_pages=12, max_rows=64, max_sequences=64, threads=2)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("fmt", STATIC)
def test_a_static_format_without_scales_is_refused(kind: str, fmt: KVFormat) -> None:
    made = program()
    other = tuple(scales for scales in static_scales(made) if scales.fmt is not fmt)
    for given in ((), other):
        with pytest.raises(ConfigError, match=f"{fmt} pages have no scales .* `trimaran calibrate"):
            open_executor(kind, made, random_weights(made), replace(OPTIONS, kv_format=fmt, kv_scales=given))
    wrong = (KVScales(fmt, (np.ones((2, 2, 3), np.float32),)),)
    with pytest.raises(ConfigError, match=r"\[2, 2, 3\], not float32 \[2, 2, 2\]: they are of another model"):
        open_executor(kind, made, random_weights(made), replace(OPTIONS, kv_format=fmt, kv_scales=wrong))
    with pytest.raises(ConfigError, match="not a positive number"):
        KVScales(fmt, (np.zeros((2, 2, 2), np.float32),))


@pytest.mark.parametrize("fmt", STATIC)
def test_numbers_beyond_the_range_become_the_largest(kind: str, fmt: KVFormat) -> None:
    """Attention over one token gives its value back, that of integers after its transform."""
    shape = (2, 1, 16, 16)
    made, weights = attention(*shape)
    scales = (KVScales(fmt, (np.full((2, 1, 1), 0.5 / {"fp8-static": 448, "int8-static": 127}[fmt], np.float32),)),)
    executor = open_executor(kind, made, weights, replace(OPTIONS, kv_format=fmt, kv_scales=scales))
    out = attend(executor, Part([3], 0, [1]))[0]
    value = np.array(weights["x"].data)[3, -16:]
    assert (np.abs(value) > 0.6).any()
    width = 16 if fmt.integer else 1
    expected = ops.hadamard(ops.hadamard(value, width).clip(-0.5, 0.5), width)
    np.testing.assert_allclose(out[:16], expected, atol=0.02)


@pytest.mark.parametrize("fmt", STATIC)
def test_scales_are_those_of_their_layer_head_and_part(kind: str, fmt: KVFormat) -> None:
    """Wrong ones would be seen: ranges lie between 1 and 2 times the least, in no order."""
    made = program()
    weights = random_weights(made)
    rows = Rows(random_tokens(40), 0, [1, 2, 3])
    coarse = replace(in_format(OPTIONS, fmt, made), kv_scales=static_scales(made, 20.0))
    outs = [run(open_executor(kind, made, weights, options), rows) for options in (coarse, OPTIONS)]
    assert np.abs(outs[0] - outs[1]).mean() < 0.1 * np.abs(outs[1]).mean()
    assert np.abs(outs[0] - outs[1]).mean() > 0


def run(executor: Executor, *rows: Rows) -> np.ndarray:
    out = executor.run(step(*rows)).logits
    assert out is not None
    return out.copy()


def test_pages_of_other_scales_are_another_layout() -> None:
    made = program()
    ours = in_format(OPTIONS, KVFormat.INT8_STATIC, made)
    theirs = replace(ours, kv_scales=static_scales(made, 3.0))
    same = ours.layout("reference", made.groups)
    same.check_same(replace(ours, kv_scales=ours.kv_scales[::-1]).layout("reference", made.groups))
    with pytest.raises(TransferError, match="their scales is"):
        same.check_same(theirs.layout("reference", made.groups))
    same.converted(KVFormat.INT8).check_same(theirs.layout("reference", made.groups).converted(KVFormat.INT8))


def test_layers_are_read_from_words() -> None:
    assert parse_layers(" 0, 12,sliding,") == (0, 12, "sliding")
    assert parse_layers("") == ()
    for text in ("first", "-1", "0;1"):
        with pytest.raises(ConfigError, match=r"kv_cache_dtype_skip_layers: .* is neither the number of a layer nor"):
            parse_layers(text)


def windowed() -> Program:
    made = program()
    cache = HeadsCache(1, 2, 16)
    ops, attention_ops = list(made.ops), [i for i, op in enumerate(made.ops) if hasattr(op, "kv_heads")]
    ops[attention_ops[1]] = replace(made.ops[attention_ops[1]], group=1, layer=0, window=32)  # type: ignore[call-arg]
    return replace(made, ops=tuple(ops), groups=(CacheGroup((cache,)), CacheGroup((cache,), 32)))


def test_layers_are_found_in_their_groups() -> None:
    assert keep_wide(program(), ()) == program()
    assert keep_wide(program(), (1,)).groups[0].caches == (HeadsCache(2, 2, 16, (1,)),)
    groups = keep_wide(windowed(), ("sliding",)).groups
    assert [group.caches[0] for group in groups] == [HeadsCache(1, 2, 16), HeadsCache(1, 2, 16, (0,))]
    assert keep_wide(windowed(), (1,)).groups == groups
    with pytest.raises(ConfigError, match="this model has no layer 2; it has 0 to 1"):
        keep_wide(program(), (2,))
    with pytest.raises(ConfigError, match="no layers with a sliding window"):
        keep_wide(program(), ("sliding",))
    with pytest.raises(ConfigError, match="'all' is neither"):
        keep_wide(program(), ("all",))


def test_pages_are_described_and_priced_with_their_wide_layers() -> None:
    made = keep_wide(program(), (0,))
    assert describe_pages(KVFormat.INT4, made.groups) == "int4+bf16"
    assert describe_pages(KVFormat.BF16, made.groups) == "bf16"
    assert describe_pages(KVFormat.INT8, program().groups) == "int8"
    one = [KVFormat.INT4.token_bytes(16), KVFormat.BF16.token_bytes(16)]
    assert made.groups[0].page_bytes(KVFormat.INT4, 16) == 16 * 2 * sum(one)
    assert made.groups[0].page_bytes(KVFormat.FP32, 16) == program().groups[0].page_bytes(KVFormat.FP32, 16)


@pytest.mark.parametrize("fmt", [fmt for fmt in KVFormat if fmt not in (KVFormat.FP32, KVFormat.BF16)])
def test_wide_layers_are_held_as_bf16_and_others_in_the_format(kind: str, fmt: KVFormat) -> None:
    made, rows = program(), (Rows(random_tokens(40), 0, [1, 2, 3]), Rows(random_tokens(3, 5), 40, [1, 2, 3]))
    weights = random_weights(made)

    def outputs(layers: tuple[int, ...], held: KVFormat) -> list[np.ndarray]:
        changed = keep_wide(made, layers)
        executor = open_executor(kind, changed, weights, in_format(OPTIONS, held, made))
        assert executor.kv_bytes == 12 * changed.groups[0].page_bytes(held, 16)
        return [run(executor, each) for each in rows]

    plain, wide, half = outputs((), fmt), outputs((0, 1), fmt), outputs((1,), fmt)
    for ours, theirs in zip(wide, outputs((), KVFormat.BF16), strict=True):
        assert ours.tobytes() == theirs.tobytes()
    for a, b, c in zip(plain, wide, half, strict=True):
        assert not np.array_equal(c, a)
        assert not np.array_equal(c, b)


@pytest.mark.parametrize("fmt", [KVFormat.INT8, KVFormat.FP8_STATIC])
def test_executors_agree_on_wide_layers(fmt: KVFormat) -> None:
    made = keep_wide(program(), (0,))
    weights, rows = random_weights(made), Rows(random_tokens(40), 0, [1, 2, 3])
    ours, theirs = (run(open_executor(kind, made, weights, in_format(OPTIONS, fmt, made)), rows) for kind in KINDS)
    np.testing.assert_allclose(ours, theirs, atol=0.1)
