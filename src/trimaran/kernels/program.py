"""A model as a program: a flat list of ops over named buffers whose first dimension is "rows of this step".

A family builds its program once (``models/``); executors run it once per step. The ops here are the whole vocabulary:
``kernels/reference.py`` is their definition in NumPy, the other executors are held against it.
"""

from dataclasses import dataclass

from trimaran.base.formats import CacheGroup


@dataclass(frozen=True)
class Buffer:
    """A float32 matrix ``[rows, width]``; ``rows`` is every token of the step, or only those that need logits."""

    name: str
    width: int
    logits_rows: bool = False


@dataclass(frozen=True)
class RopeScaling:
    """Llama-3 frequency scaling: long wavelengths are stretched by ``factor``, the middle is blended (Llama 3.1)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True)
class RopeSpec:
    """Rotary embedding of the first ``dims`` dimensions of a head; pairs are (i, i + dims/2).

    ``factors`` are what GGUF files carry in place of ``scaling``: frequency i is divided by ``factors[i]``.
    """

    theta: float
    dims: int
    scaling: RopeScaling | None = None
    factors: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Embed:
    """``out[t] = weight[token[t]]``."""

    out: Buffer
    weight: str


@dataclass(frozen=True)
class RmsNorm:
    """``out = weight * x / sqrt(mean(x^2) + eps)``."""

    out: Buffer
    x: Buffer
    weight: str
    eps: float


@dataclass(frozen=True)
class Linear:
    """``out = x @ weight.T + bias``. ``weight`` ``[out.width, x.width]``.

    ``wide``: where activations are int8, this layer's input keeps 15 bits instead of 7. Meant for queries and keys,
    whose errors the softmax multiplies.
    """

    out: Buffer
    x: Buffer
    weight: str
    bias: str | None = None
    wide: bool = False


@dataclass(frozen=True)
class Attention:
    """Rotate q and k, append k and v to the layer's pages, attend causally to the sequence's pages.

    ``qkv`` holds the heads side by side: ``[heads | kv_heads | kv_heads] * head_dim``. Query head h reads kv head
    ``h // (heads // kv_heads)``. Keys and values are read back from the page, in its format, also within the step:
    a prefix that was cached and one that is fresh give the same bits.
    """

    out: Buffer
    qkv: Buffer
    layer: int
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    rope: RopeSpec


@dataclass(frozen=True)
class SwiGLU:
    """``out = silu(gate) * up`` with ``gate_up = [gate | up]``."""

    out: Buffer
    gate_up: Buffer


@dataclass(frozen=True)
class Add:
    """``out = a + b``."""

    out: Buffer
    a: Buffer
    b: Buffer


@dataclass(frozen=True)
class TakeRows:
    """Keep the rows that need logits."""

    out: Buffer
    x: Buffer


@dataclass(frozen=True)
class Logits:
    """The step's result: ``x`` is ``[logits rows, vocab]``."""

    x: Buffer


Op = Embed | RmsNorm | Linear | Attention | SwiGLU | Add | TakeRows | Logits


@dataclass(frozen=True)
class WeightSpec:
    """A weight that the program reads: its name, shape and, for matrices, whether it may be held quantised."""

    name: str
    shape: tuple[int, ...]
    matrix: bool


@dataclass(frozen=True)
class Program:
    """Ops in execution order, the weights they read, and the shape of the cache they write."""

    family: str
    ops: tuple[Op, ...]
    weights: dict[str, WeightSpec]
    cache: CacheGroup
    vocab: int
    hidden: int
    context: int  # positions that rope tables must cover
