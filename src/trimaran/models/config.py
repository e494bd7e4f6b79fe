"""A model's hyper-parameters as one frozen value, whatever the vendor calls them."""

from dataclasses import dataclass

from trimaran.base.errors import CheckpointError
from trimaran.kernels.program import RopeSpec


@dataclass(frozen=True)
class ModelConfig:
    """A decoder's sizes and constants. ``models/config_gguf.py`` and ``models/config_hf.py`` read it from files.

    ``context`` is the number of positions the model was trained for. ``tied`` means that the output matrix is the
    embedding. ``eos_ids`` are the tokens that end a turn. Raises ``CheckpointError`` when sizes do not fit together.
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

    def __post_init__(self) -> None:
        for name in ("vocab", "hidden", "intermediate", "layers", "heads", "kv_heads", "head_dim", "context"):
            if getattr(self, name) < 1:
                raise CheckpointError(f"the model's {name} must be at least 1, not {getattr(self, name)}")
        if self.heads % self.kv_heads:
            raise CheckpointError(f"{self.heads} query heads do not divide among {self.kv_heads} key/value heads")
        if self.rope.dims % 2 or not 0 < self.rope.dims <= self.head_dim:
            raise CheckpointError(f"rope rotates {self.rope.dims} of {self.head_dim} head dimensions: no even part")
        if not self.rope.theta > 0:
            raise CheckpointError(f"rope's base frequency must be positive, not {self.rope.theta}")
        if not 0 < self.norm_eps < 1:
            raise CheckpointError(f"the norm's epsilon must lie between 0 and 1, not {self.norm_eps}")

    @property
    def q_width(self) -> int:
        """Width of all query heads side by side."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Width of all key heads side by side; the value heads take as much."""
        return self.kv_heads * self.head_dim
