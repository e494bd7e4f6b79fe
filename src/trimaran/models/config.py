"""A model's hyper-parameters as frozen values, whatever the vendor calls them."""

import math
from dataclasses import dataclass
from typing import Literal

from trimaran.base.errors import CheckpointError, UnsupportedError
from trimaran.base.messages import Score
from trimaran.kernels.program import LinearScaling, QueryScale, RopeSpec, YarnScaling


@dataclass(frozen=True)
class ExpertsConfig:
    """Mixture of experts: every layer but those in ``dense`` has ``experts`` experts, ``width`` wide each.

    ``shared_width`` is the width of what every token goes through beside its experts; 0: nothing. The other fields are
    those of ``kernels.program.Route``.
    """

    experts: int
    top_k: int
    width: int
    shared_width: int
    dense: frozenset[int]
    scoring: Literal["softmax", "sigmoid"]
    groups: int = 1
    top_groups: int = 1
    normalise: bool = True
    epsilon: float = 0.0
    factor: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.top_k <= self.experts or self.width < 1 or self.shared_width < 0:
            raise CheckpointError(f"the model's experts have impossible sizes: {self}")
        if self.groups < 1 or self.experts % self.groups or not 0 < self.top_groups <= self.groups:
            raise CheckpointError(f"{self.experts} experts do not divide into {self.groups}, {self.top_groups} of them")
        size = self.experts // self.groups
        if size * self.top_groups < self.top_k or (self.groups > 1 and size == 1):
            raise CheckpointError(f"{self.top_groups} of {self.groups} groups hold too few experts for {self.top_k}")


@dataclass(frozen=True)
class LatentConfig:
    """Multi-head latent attention: ranks of the query and the key-value projection, and the widths of a head.

    A query or key is ``nope`` + ``ModelConfig.rope.dims`` wide, a value ``value``.
    """

    q_rank: int
    rank: int
    nope: int
    value: int

    def __post_init__(self) -> None:
        if min(self.q_rank, self.rank, self.nope, self.value) < 1:
            raise CheckpointError(f"the model's latent attention has impossible sizes: {self}")


MOST_SELECTED = 1 << 16  # each row of a step has room for so many numbers


@dataclass(frozen=True)
class IndexerConfig:
    """Sparse attention: ``layers`` have an indexer, the others use the choice of the last layer before them.

    ``interleaved``: rotation pairs (2i, 2i + 1) in the file.
    """

    heads: int
    dim: int
    top_k: int
    layers: frozenset[int]
    interleaved: bool

    def __post_init__(self) -> None:
        if min(self.heads, self.dim, self.top_k) < 1 or 0 not in self.layers:
            raise CheckpointError(f"the model's indexer has impossible sizes, or none in layer 0: {self}")
        if self.top_k > MOST_SELECTED:
            raise UnsupportedError(f"an indexer chooses up to {MOST_SELECTED} tokens here, not {self.top_k}")


Pooling = Literal["mean", "first"]


@dataclass(frozen=True)
class EncoderConfig:
    """What an encoder has that decoders have not: tables of ``positions`` and ``token_types`` rows that are added to
    the embedding, and what it makes of a text: the ``mean`` of its rows or the ``first`` one, of length 1 if
    ``normalised``. With ``score`` a text is a pair of texts, and what it makes of it one logit, by its first row."""

    positions: int
    token_types: int
    pooling: Pooling
    normalised: bool
    score: Score | None = None

    def __post_init__(self) -> None:
        if min(self.positions, self.token_types - (self.score is not None)) < 1:
            raise CheckpointError(f"the encoder's tables have impossible sizes: {self}")


NO_ROPE = RopeSpec(1.0, 0)  # of models that know positions otherwise


@dataclass(frozen=True)
class ModelConfig:
    """A model's sizes and constants. ``models/config_gguf.py`` and ``models/config_hf.py`` read it from files.

    ``context`` is the number of positions the model was trained for. ``tied`` means that the output matrix is the
    embedding. ``eos_ids`` are the tokens that end a turn. ``scale`` multiplies the scores of attention. The layers in
    ``windowed`` see the last ``window`` tokens, and rotate by ``local_rope`` if there is one. ``mtp_layers`` are
    multi-token-prediction layers that the files hold behind the others. With ``encoder`` the model makes vectors, not
    tokens. Raises ``CheckpointError`` when sizes do not fit together.
    """

    family: str
    vocab: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    rope: RopeSpec
    context: int
    tied: bool
    attention_bias: bool
    bos_id: int | None
    eos_ids: frozenset[int]
    scale: float = 0.0  # 0: head_dim ** -0.5
    qk_norm: bool = False
    query_scale: QueryScale | None = None
    window: int | None = None
    windowed: frozenset[int] = frozenset()
    local_rope: RopeSpec | None = None
    experts: ExpertsConfig | None = None
    latent: LatentConfig | None = None
    indexer: IndexerConfig | None = None
    mtp_layers: int = 0
    encoder: EncoderConfig | None = None

    def __post_init__(self) -> None:
        for name in ("vocab", "hidden", "intermediate", "layers", "heads", "kv_heads", "head_dim", "context"):
            if getattr(self, name) < 1:
                raise CheckpointError(f"the model's {name} must be at least 1, not {getattr(self, name)}")
        if self.heads % self.kv_heads:
            raise CheckpointError(f"{self.heads} query heads do not divide among {self.kv_heads} key/value heads")
        for rope in (self.rope, self.local_rope or self.rope) if self.rope != NO_ROPE else ():
            if rope.dims % 2 or not 0 < rope.dims <= self.head_dim:
                raise CheckpointError(f"rope rotates {rope.dims} of {self.head_dim} head dimensions: no even part")
            _check_rope(rope)
        if self.query_scale is not None and self.query_scale.original_context < 1:
            raise CheckpointError(f"queries cannot be scaled over {self.query_scale.original_context} positions")
        if not 0 < self.norm_eps < 1:
            raise CheckpointError(f"the norm's epsilon must lie between 0 and 1, not {self.norm_eps}")
        if (self.window is None and self.windowed) or (self.window is not None and self.window < 1):
            raise CheckpointError(f"layers attend to a window of {self.window} tokens")
        if self.indexer is not None and self.indexer.dim < self.rope.dims:
            raise CheckpointError(f"an indexer's {self.indexer.dim} dimensions are fewer than rope rotates")
        if self.mtp_layers < 0:
            raise CheckpointError(f"{self.mtp_layers} multi-token-prediction layers")
        if not self.scale:
            object.__setattr__(self, "scale", self.head_dim**-0.5)
        if not 0 < self.scale < math.inf:
            raise CheckpointError(f"attention cannot multiply its scores with {self.scale}")

    @property
    def q_width(self) -> int:
        """Width of all query heads side by side."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Width of all key heads side by side; the value heads take as much."""
        return self.kv_heads * self.head_dim


def _check_rope(rope: RopeSpec) -> None:
    """Raises ``CheckpointError`` on numbers that give no frequencies."""
    scaling = rope.scaling
    if not rope.theta > 0:
        raise CheckpointError(f"rope's base frequency must be positive, not {rope.theta}")
    if scaling is None:
        return
    if not scaling.factor > 0:
        raise CheckpointError(f"rope's scaling factor must be positive, not {scaling.factor}")
    if not isinstance(scaling, LinearScaling) and scaling.original_context < 1:
        raise CheckpointError(f"rope's scaling is of a context of {scaling.original_context} tokens")
    if isinstance(scaling, YarnScaling):
        numbers = (scaling.beta_fast, scaling.beta_slow, scaling.magnitude)
        if rope.theta <= 1 or not all(1e-9 < number < 1e9 for number in numbers):
            raise CheckpointError(f"YaRN's numbers make no sense: {scaling}")
