"""NaN and infinity stay where they arose: visible in their own rows, and nowhere else, now or later."""

from dataclasses import replace

import numpy as np
import pytest

from trimaran import _native
from trimaran.base.formats import WeightFormat
from trimaran.kernels.native import NativeExecutor
from trimaran.kernels.program import Program
from trimaran.kernels.step import ExecutorOptions
from trimaran.kernels.weights import Weight

from .tiny import CONFIG, Rows, program, random_weights, step

OPTIONS = ExecutorOptions(num_pages=60, max_rows=200, max_sequences=200, threads=2)
BAD_TOKEN = 5


@pytest.fixture(params=_native.usable_isas(), autouse=True)
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMARAN_ISA", request.param)


def with_a_bad_token(program: Program, fmt: WeightFormat, value: float) -> dict[str, Weight]:
    weights = random_weights(program, fmt)
    embed = weights["model.embed_tokens"]
    table = np.random.default_rng(0).standard_normal(embed.shape, np.float32)
    table[BAD_TOKEN] = value
    return {**weights, embed.name: Weight(embed.name, WeightFormat.FP32, embed.shape, table)}


def logits(executor: NativeExecutor, *sequences: Rows) -> np.ndarray:
    out = executor.run(step(*sequences)).logits
    assert out is not None
    return out.copy()


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize(
    ("fmt", "hidden"), [(WeightFormat.FP32, 48), (WeightFormat.BF16, 48), (WeightFormat.INT4Z, 64)], ids=str
)
def test_a_bad_row_does_not_poison_the_next_step(fmt: WeightFormat, hidden: int, value: float) -> None:
    tiny = program(replace(CONFIG, hidden=hidden))
    executor = NativeExecutor(tiny, with_a_bad_token(tiny, fmt, value), OPTIONS)
    good = Rows([1, 2, 3], 0, [4])
    before = logits(executor, good)
    bad = logits(executor, Rows([BAD_TOKEN] * 3, 0, [6]))
    assert not np.isfinite(bad).all()
    assert logits(executor, good).tobytes() == before.tobytes()
    assert np.isfinite(before).all()


@pytest.mark.parametrize("fmt", [WeightFormat.FP32, WeightFormat.INT8], ids=str)
def test_a_bad_token_does_not_reach_the_rows_before_it(fmt: WeightFormat) -> None:
    executor = NativeExecutor(program(), with_a_bad_token(program(), fmt, np.inf), OPTIONS)
    alone = logits(executor, Rows([1, 2], 0, [4]))
    followed = logits(executor, Rows([1, 2, BAD_TOKEN], 0, [4]))
    assert np.isfinite(alone).all()
    assert followed[:2].tobytes() == alone.tobytes()


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["mlp.gate_up", "self_attn.qkv", "mlp.down_proj"])
def test_a_damaged_scale_is_seen_in_the_logits(name: str, value: float) -> None:
    """One bad number in the first layer must not be rounded away to something that looks like an answer."""
    name = f"model.layers.0.{name}"
    weights = random_weights(program(), WeightFormat.INT4Z)
    scale = np.array(weights[name].scale)
    scale[5, 1] = value
    damaged = {**weights, name: replace(weights[name], scale=scale)}
    out = NativeExecutor(program(), damaged, OPTIONS).run(step(Rows([1, 2, 3], 0, [4])))
    assert out.greedy.tolist() == [-1] * 3
