"""Programs around latent attention and its indexer whose inputs are rows of tables, for tests of executors."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trimaran.base.formats import CacheGroup, IndexCache, LatentCache, WeightFormat
from trimaran.kernels.program import (
    Buffer,
    Embed,
    HeadLinear,
    LatentAttention,
    Linear,
    Logits,
    Op,
    Program,
    RopeSpec,
    SelectTokens,
    TakeRows,
    WeightSpec,
)
from trimaran.kernels.step import Executor
from trimaran.kernels.weights import Weight

from .single_op import Part, step

TABLE = 64  # tokens, each a row of every table
EPS = 1e-6


@dataclass(frozen=True)
class Shape:
    """Widths of latent attention, and of an indexer if ``top_k``."""

    heads: int
    latent: int
    rope: int
    nope: int
    value: int
    top_k: int = 0
    index_heads: int = 4
    index_dim: int = 32

    @property
    def head_dim(self) -> int:
        return self.nope + self.rope

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5

    @property
    def spec(self) -> RopeSpec:
        return RopeSpec(1000.0, self.rope)


def tables(shape: Shape, seed: int = 3) -> dict[str, np.ndarray]:
    """Random inputs ``[TABLE, width]``, norms, and the two matrices of every head."""
    rng = np.random.default_rng(seed)
    h, i = shape.heads, shape.index_heads
    widths = {"q": h * shape.head_dim, "kv": shape.latent + shape.rope, "iq": i * shape.index_dim, "iw": i}
    made = {name: rng.standard_normal((TABLE, width), np.float32) for name, width in widths.items()}
    made["ik"] = rng.standard_normal((TABLE, shape.index_dim), np.float32)
    made["k_up"] = rng.standard_normal((h * shape.latent, shape.nope), np.float32) * np.float32(shape.latent**-0.5)
    made["v_up"] = rng.standard_normal((h * shape.value, shape.latent), np.float32) * np.float32(shape.latent**-0.5)
    made["norm"] = rng.uniform(0.5, 1.5, shape.latent).astype(np.float32)
    made["k_norm"] = rng.uniform(0.5, 1.5, shape.index_dim).astype(np.float32)
    made["k_norm.bias"] = rng.standard_normal(shape.index_dim, np.float32) / 4
    return made


def selection(shape: Shape) -> tuple[list[Op], Buffer]:
    """Ops that choose tokens, and what they choose."""
    q, k = Buffer("iq", shape.index_heads * shape.index_dim), Buffer("ik", shape.index_dim)
    weights, out = Buffer("iw", shape.index_heads), Buffer("selected", shape.top_k)
    spec, sizes = RopeSpec(1000.0, 16), (shape.index_heads, shape.index_dim, shape.top_k)
    select = SelectTokens(out, q, k, weights, 0, 0, *sizes, spec, "k_norm", "k_norm.bias", EPS)
    return [Embed(q, "iq"), Embed(k, "ik"), Embed(weights, "iw"), select], out


def attention(shape: Shape) -> tuple[list[Op], Buffer]:
    """Ops from queries and latents to the heads' values, ``[heads * value]``."""
    q, kv = Buffer("q", shape.heads * shape.head_dim), Buffer("kv", shape.latent + shape.rope)
    q_latent = Buffer("q_latent", shape.heads * shape.latent)
    gathered, out = Buffer("gathered", shape.heads * shape.latent), Buffer("out", shape.heads * shape.value)
    ops, selected = selection(shape) if shape.top_k else ([], None)
    sizes = (0, 0, shape.heads, shape.latent, shape.scale, shape.spec)
    ops += [
        Embed(q, "q"),
        Embed(kv, "kv"),
        HeadLinear(q_latent, q, "k_up", shape.heads, shape.nope),
        LatentAttention(gathered, q_latent, q, kv, *sizes, "norm", EPS, selected),
        HeadLinear(out, gathered, "v_up", shape.heads, shape.latent),
    ]
    return ops, out


def program(
    shape: Shape, made: tuple[list[Op], Buffer], values: dict[str, np.ndarray], context: int = 1024
) -> tuple[Program, dict[str, Weight]]:
    """A program that ends in the buffer of ``made``; the group holds latents and, with ``top_k``, index keys.

    A result narrower than the vocabulary, ``TABLE``, is widened with zeros.
    """
    ops, result = made
    if result.width < TABLE:
        wide = Buffer("wide", TABLE)
        ops, result = [*ops, Linear(wide, result, "eye")], wide
        values = values | {"eye": np.eye(TABLE, made[1].width, dtype=np.float32)}
    taken = Buffer("taken", result.width, logits_rows=True)
    read = {value for op in ops for value in vars(op).values() if isinstance(value, str)}
    weights = {
        name: Weight(name, WeightFormat.FP32, array.shape, array) for name, array in values.items() if name in read
    }
    specs = {name: WeightSpec(name, weight.shape, len(weight.shape) == 2) for name, weight in weights.items()}
    latents = LatentCache(1, shape.latent, shape.rope)
    caches = (latents, IndexCache(1, shape.index_dim)) if shape.top_k else (latents,)
    all_ops = (*ops, TakeRows(taken, result), Logits(taken))
    return Program("test", all_ops, specs, (CacheGroup(caches),), result.width, result.width, context), weights


def logits(executor: Executor, *parts: Part, rows: Sequence[int] | None = None) -> np.ndarray:
    """The program's result in ``rows`` of a step, else in all."""
    out = executor.run(step(*parts, logits_rows=rows)).logits
    assert out is not None
    return out.copy()


def tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, TABLE, count).tolist()
