"""A model as a program: a flat list of ops over named buffers whose first dimension is "rows of this step".

A family builds its program once (``models/``); executors run it once per step. The ops here are the whole vocabulary:
``kernels/reference.py`` is their definition in NumPy, the other executors are held against it.
"""

from dataclasses import dataclass
from typing import Literal

import msgspec

from trimaran.base.formats import CacheGroup, WeightFormat


@dataclass(frozen=True)
class Buffer:
    """A float32 matrix ``[rows, width]``; ``rows`` is every token of the step, or only those that need logits."""

    name: str
    width: int
    logits_rows: bool = False


class Llama3Scaling(msgspec.Struct, frozen=True, tag=True):
    """Long wavelengths are stretched by ``factor``, the middle is blended (Llama 3.1)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


class LinearScaling(msgspec.Struct, frozen=True, tag=True):
    """Every wavelength is stretched by ``factor`` (the full-attention layers of Gemma 3)."""

    factor: float


class YarnScaling(msgspec.Struct, frozen=True, tag=True):
    """Long wavelengths are stretched by ``factor``, short ones kept, with a linear ramp between (YaRN).

    The ramp runs between the dimensions that turn ``beta_fast`` and ``beta_slow`` times over ``original_context``
    positions. Cosines and sines are multiplied by ``magnitude``.
    """

    factor: float
    original_context: int
    beta_fast: float
    beta_slow: float
    magnitude: float


RopeScaling = Llama3Scaling | LinearScaling | YarnScaling


@dataclass(frozen=True)
class RopeSpec:
    """Rotary embedding of ``dims`` dimensions of a head; pairs are (i, i + dims/2).

    Families whose pairs are (2i, 2i + 1) get the rows of their matrices reordered when they are loaded, which leaves
    products of queries and keys as they were. ``factors`` are what GGUF files carry in place of ``scaling``: frequency
    i is divided by ``factors[i]``.
    """

    theta: float
    dims: int
    scaling: RopeScaling | None = None
    factors: tuple[float, ...] | None = None


RowIndex = Literal["token", "position", "type"]


@dataclass(frozen=True)
class Embed:
    """``out[t] = scale * weight[i]``, where i is row t's token, its position, or its type (``StepInputs.types``)."""

    out: Buffer
    weight: str
    scale: float = 1.0
    index: RowIndex = "token"


@dataclass(frozen=True)
class RmsNorm:
    """``out = weight * x / sqrt(mean(x^2) + eps)``. Families that store ``weight - 1`` get 1 added at load time."""

    out: Buffer
    x: Buffer
    weight: str
    eps: float


@dataclass(frozen=True)
class LayerNorm:
    """``out = weight * (x - mean(x)) / sqrt(variance(x) + eps) + bias``."""

    out: Buffer
    x: Buffer
    weight: str
    bias: str
    eps: float


@dataclass(frozen=True)
class Linear:
    """``out = x @ weight.T + bias``. ``weight`` ``[out.width, x.width]``.

    ``wide``: where activations are int8, this layer's input keeps 15 bits instead of 7 in its coarser groups. Meant
    for queries and keys, whose errors the softmax multiplies.
    """

    out: Buffer
    x: Buffer
    weight: str
    bias: str | None = None
    wide: bool = False


@dataclass(frozen=True)
class HeadLinear:
    """A matrix for each head: ``out[h] = x[h, :inputs] @ weight[h].T``, for all that is a head's share of a row.

    ``weight`` ``[heads * out.width / heads, inputs]``: the heads' matrices one under the other. A head's share of ``x``
    may be wider than ``inputs``; the rest of it is not read.
    """

    out: Buffer
    x: Buffer
    weight: str
    heads: int
    inputs: int


@dataclass(frozen=True)
class HeadNorm:
    """RMS norm of queries or keys before their rotation: ``weight`` ``[head_dim]`` for each head by itself, or
    (``whole``) ``[heads * head_dim]`` with one mean over all heads."""

    weight: str
    eps: float
    whole: bool = False


@dataclass(frozen=True)
class QueryScale:
    """Queries at position p are multiplied by ``1 + beta * ln(1 + floor(p / original_context))`` (Llama 4)."""

    beta: float
    original_context: int


@dataclass(frozen=True)
class Attention:
    """Norm and rotate q and k, append k and v to the layer's pages, attend to the sequence's pages.

    ``qkv`` holds the heads side by side: ``[heads | kv_heads | kv_heads] * head_dim``. Query head h reads kv head
    ``h // (heads // kv_heads)``. Keys and values are read back from the page, in its format, also within the step:
    a prefix that was cached and one that is fresh give the same bits. Position i sees j with ``i - window < j <= i``,
    or, where attention is not ``causal``, all of its sequence up to its last row of the step: there a text must be in
    one step as a whole. Where ``out`` holds only the rows that need logits, those alone attend, and all append.
    ``layer`` counts within the ``HeadsCache`` of group number ``group``.
    """

    out: Buffer
    qkv: Buffer
    group: int
    layer: int
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    rope: RopeSpec
    window: int | None = None
    q_norm: HeadNorm | None = None
    k_norm: HeadNorm | None = None
    query_scale: QueryScale | None = None
    causal: bool = True


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention in its absorbed form: all heads attend to one latent vector a token.

    ``kv`` is ``[latent | rope.dims]``. The latent part goes through an RMS norm (``norm``, ``eps``), the other is
    rotated; both are appended to the layer's pages as one row. Head h's query is its share of ``q_latent``, ``latent``
    wide, and the last ``rope.dims`` of its share of ``q``, rotated here. ``out[h]`` is the weighted sum of latents.
    With ``selected`` (see ``SelectTokens``) a row sees those tokens alone. ``layer`` counts within the ``LatentCache``.
    """

    out: Buffer
    q_latent: Buffer
    q: Buffer
    kv: Buffer
    group: int
    layer: int
    heads: int
    latent: int
    scale: float
    rope: RopeSpec
    norm: str
    eps: float
    selected: Buffer | None = None


@dataclass(frozen=True)
class SelectTokens:
    """Chooses the tokens that sparse attention reads (DeepSeek's lightning indexer).

    ``k`` ``[dim]`` goes through a LayerNorm (``norm``, ``norm_bias``, ``eps``); it and each of the ``heads`` queries in
    ``q`` are rotated in their first ``rope.dims`` dimensions; the key is appended to the layer's index pages and read
    back. Token s has the score ``sum over heads of weights[h] * heads^-0.5 * max(0, q[h] . k[s] * dim^-0.5)``. ``out``
    ``[top_k]`` holds the positions of the ``top_k`` largest scores among the tokens that the row sees (the lower
    position on a tie) in ascending order, then -1. ``layer`` counts within the ``IndexCache``.
    """

    out: Buffer
    q: Buffer
    k: Buffer
    weights: Buffer
    group: int
    layer: int
    heads: int
    dim: int
    top_k: int
    rope: RopeSpec
    norm: str
    norm_bias: str
    eps: float


Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True)
class Glu:
    """``out = activation(gate) * up`` with ``gate_up = [gate | up]``."""

    out: Buffer
    gate_up: Buffer
    activation: Activation = "silu"


@dataclass(frozen=True)
class Gelu:
    """``out = x / 2 * (1 + erf(x / sqrt(2)))``."""

    out: Buffer
    x: Buffer


@dataclass(frozen=True)
class Tanh:
    """``out = tanh(x)``."""

    out: Buffer
    x: Buffer


@dataclass(frozen=True)
class Route:
    """Chooses ``top_k`` experts for each row from ``logits`` ``[experts]``, in float32.

    ``s = softmax(logits)`` or ``sigmoid(logits)``; ``c = s + bias``. With ``groups`` > 1 only the ``top_groups`` groups
    with the largest sums of their two largest c keep theirs, the others' become -inf. The ``top_k`` largest c are
    chosen (the lower expert on a tie); their weights are s, divided by their sum + ``epsilon`` if ``normalise``, times
    ``factor``. ``out`` ``[2 * top_k]``: the experts by falling c, then their weights.
    """

    out: Buffer
    logits: Buffer
    top_k: int
    scoring: Literal["softmax", "sigmoid"]
    bias: str | None = None
    groups: int = 1
    top_groups: int = 1
    normalise: bool = True
    epsilon: float = 0.0
    factor: float = 1.0


@dataclass(frozen=True)
class Experts:
    """``out = sum of weight * down[e] @ (activation(gate[e] @ x) * up[e] @ x)`` over a row's experts e.

    The sum goes by ascending e. ``gate_up`` ``[experts * 2 * width, x.width]``: each expert's gate rows, then its up
    rows, expert after expert. ``down`` ``[experts * out.width, width]``. ``routes`` is the result of ``Route``.
    """

    out: Buffer
    x: Buffer
    routes: Buffer
    gate_up: str
    down: str
    experts: int
    width: int
    activation: Activation = "silu"


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
class MeanRows:
    """The mean of all rows that the step has of a sequence, for each row that needs logits: of its sequence."""

    out: Buffer
    x: Buffer


@dataclass(frozen=True)
class Logits:
    """The step's result: ``x`` is ``[logits rows, Program.result]``."""

    x: Buffer


Op = (
    Embed
    | RmsNorm
    | LayerNorm
    | Linear
    | HeadLinear
    | Attention
    | LatentAttention
    | SelectTokens
    | Glu
    | Gelu
    | Tanh
    | Route
    | Experts
    | Add
    | TakeRows
    | MeanRows
    | Logits
)


@dataclass(frozen=True)
class WeightSpec:
    """A weight that the program reads: its name, shape and, for matrices, whether it may be held quantised.

    ``least`` is the coarsest format that a matrix may be held in; ``None``: any.
    """

    name: str
    shape: tuple[int, ...]
    matrix: bool
    least: WeightFormat | None = None


@dataclass(frozen=True)
class Program:
    """Ops in execution order, the weights they read, and the shapes of the caches they write."""

    family: str
    ops: tuple[Op, ...]
    weights: dict[str, WeightSpec]
    groups: tuple[CacheGroup, ...]
    vocab: int
    hidden: int
    context: int  # positions that rope tables must cover
    prefill_ops: tuple[Op, ...] = ()  # of rows of prompts, where they meet other weights (kernels/prefill_ops.py)

    @property
    def result(self) -> int:
        """Numbers of a result row: a logit for each of the vocabulary, or what an encoder makes of a text."""
        last = self.ops[-1]
        assert isinstance(last, Logits), "a program ends with its result"
        return last.x.width

    @property
    def types(self) -> int:
        """Token types that rows may have; 0 of a program that does not ask for them."""
        tables = [op.weight for op in self.ops if isinstance(op, Embed) and op.index == "type"]
        return min((self.weights[table].shape[0] for table in tables), default=0)
