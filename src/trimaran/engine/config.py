"""What a user may choose about an engine, once, before it starts."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import msgspec

from trimaran.base.errors import ConfigError
from trimaran.base.formats import ActivationFormat, KVFormat, WeightFormat
from trimaran.base.messages import Role
from trimaran.checkpoint.verification import Verification
from trimaran.kernels.null_model import NullModel


@dataclass(frozen=True, kw_only=True)
class PoolConfig:
    """How an engine that prefills or decodes reaches those of the other kind."""

    name: str  # of the worker, for people
    key: str = field(repr=False)  # of the deployment: see pools/key.py
    transports: tuple[str, ...] = ("shm", "tcp")  # the best first
    listen: dict[str, str] = field(default_factory=dict)  # addresses by transport; else such as only this host reaches


SAME = "same"
MOST_DRAFTED = 16  # tokens of a draft: more are hardly ever right


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Options of one engine. None means: as the model or the machine suggests (``engine/load.py`` decides).

    Raises ``ConfigError`` naming the option when a value is impossible.
    """

    model: str = ""  # a .gguf file or a directory with safetensors; unused by the null executor
    served_name: str = ""  # how the engine calls the model; empty: the last part of ``model``
    verify: Verification = Verification.AUTO
    manifest_key: str | None = None  # a PEM file with the key that must have signed the model's manifest
    packed_cache_bytes: int | None = None  # most that packed weights may take on disk; 0: none; None: the environment
    role: Role = "both"  # what it does of requests
    pool: PoolConfig | None = None  # unless the role is both
    cores: tuple[int, ...] = ()  # that a worker process keeps to; empty: all that it may use
    export_format: KVFormat | None = None  # of the pages that it gives away, when their scales are not its own
    executor: str = "native"
    weight_format: WeightFormat | None = None  # None: the file's own grid, tensor by tensor
    prefill_weight_format: str = SAME  # of what computes prompts: a format, "auto" for the file's own grid, or as above
    kv_format: KVFormat | None = None  # None: see kv_format_beside
    kv_cache_scales: str | None = None  # file of a static format's scales; None: see calibration.kv_ranges.find_scales
    kv_cache_dtype_skip_layers: tuple[int | str, ...] = ()  # layers that stay bf16: numbers, and "sliding"
    activations: ActivationFormat = ActivationFormat.INT8
    max_model_len: int | None = None  # tokens of prompt and output; None: the model's context
    max_num_seqs: int = 64  # sequences that run at once
    max_num_batched_tokens: int = 512  # rows of one step
    max_waiting: int = 1024  # requests that queue before others are refused
    page_size: int = 16  # tokens of one KV page
    kv_memory_bytes: int | None = None  # None: what max_num_seqs full contexts need, at most a quarter of free memory
    prefix_caching: bool = True
    share_prefixes: bool = True  # attention reads pages that sequences share once for all of them; same tokens
    page_tags: bool = True  # check before every step that its pages are its own
    # Seconds between two runs of a prompt whose logits are known, by a worker; in any process it runs when the model is
    # loaded. 0: never.
    canary_interval: float = 0.0
    speculative_ngram: int = 0  # most tokens of a draft; 0: no speculation. Servers and LLM have 8
    overlap: bool = True  # start a step, then send and receive; False: the plain loop, which waits for each step
    threads: int = 0  # 0: one per core that this process may use
    pin_threads: bool = False  # a core for each of them; in a worker process also for the thread of the loop
    seed: int | None = None  # makes requests without a seed of their own repeatable
    null: NullModel = field(default_factory=NullModel)  # what the null executor plays

    def __post_init__(self) -> None:
        for name, low in _LOWEST.items():
            value = getattr(self, name)
            if value is not None and value < low:
                raise ConfigError(f"{name} must be at least {low}, not {value}")
        if self.speculative_ngram > MOST_DRAFTED:
            raise ConfigError(f"speculative_ngram must be at most {MOST_DRAFTED}, not {self.speculative_ngram}")
        self._check_prefill()
        if self.page_size % 16:
            raise ConfigError(f"page_size must be a multiple of 16, not {self.page_size}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least max_num_seqs "
                f"({self.max_num_seqs}): each running sequence needs a row in every step"
            )

    @property
    def apart(self) -> bool:
        """Whether prompts are computed with weights of their own, in ``prefill_format``."""
        return self.prefill_weight_format != SAME

    @property
    def prefill_format(self) -> WeightFormat | None:
        """As ``weight_format``, of the weights that compute prompts."""
        if not self.apart:
            return self.weight_format
        return None if self.prefill_weight_format == "auto" else WeightFormat(self.prefill_weight_format)

    def _check_prefill(self) -> None:
        known = (SAME, "auto", *WeightFormat)
        if self.prefill_weight_format not in known:
            raise ConfigError(
                f"prefill_weight_format must be one of {', '.join(known)}, not {self.prefill_weight_format!r}"
            )
        if not self.apart:
            return
        if self.executor == "null":
            raise ConfigError("prefill_weight_format is of no use to the null executor, which has no weights")
        if self.role != "both":
            raise ConfigError(f"prefill_weight_format is for an engine of no pool; this one's role is {self.role}")
        if self.prefill_format == self.weight_format:
            raise ConfigError(f"prefill_weight_format and weight_format are both {self.weight_format or 'auto'}")

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "EngineConfig":
        """The config in ``values`` (JSON types); raises ``ConfigError`` on an unknown key or a wrong type."""
        known = {f.name for f in fields(cls)}
        if unknown := sorted(set(values) - known):
            raise ConfigError(f"unknown engine option {', '.join(unknown)}; known are {', '.join(sorted(known))}")
        try:
            return msgspec.convert(dict(values), cls)
        except msgspec.ValidationError as error:
            raise ConfigError(f"engine options: {error}") from None

    def to_json(self) -> dict[str, Any]:
        """The inverse of ``from_json``."""
        values: dict[str, Any] = msgspec.to_builtins(self)
        return values


_LOWEST = {
    "max_model_len": 2,
    "max_num_seqs": 1,
    "max_num_batched_tokens": 1,
    "max_waiting": 1,
    "page_size": 16,
    "kv_memory_bytes": 1,
    "packed_cache_bytes": 0,
    "speculative_ngram": 0,
    "threads": 0,
    "seed": 0,
    "canary_interval": 0,
}
