"""How many tokens and sequences fit beside the weights, and how many GPUs they need at least."""

from dataclasses import dataclass, replace

from trimaran.base.errors import ConfigError
from trimaran.base.formats import IndexCache
from trimaran.kernels.program import Program
from trimaran.models.config import ModelConfig
from trimaran.plan.cache import CacheBytes, CacheRecipe, cache_bytes
from trimaran.plan.gpus import GIB, Gpu
from trimaran.plan.weights import WeightBytes, WeightRecipe, weight_bytes

MOST_GPUS = 64  # where the search for the least number ends


@dataclass(frozen=True)
class Assumptions:
    """What a plan takes for granted.

    ``utilization`` is the share of a GPU's memory that the engine may use; ``overhead`` bytes of it go to activations,
    captured graphs and communication. ``index_everywhere``: index keys are allocated in every layer, as some engines
    do, and not only in those that have an indexer. ``mtp``: multi-token-prediction layers are loaded.
    """

    gpu: Gpu
    count: int
    weights: WeightRecipe
    cache: CacheRecipe
    context: int
    utilization: float = 0.9
    overhead: int = 0
    index_everywhere: bool = False
    mtp: bool = True

    def __post_init__(self) -> None:
        for name in ("count", "context"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name} must be at least 1, not {getattr(self, name)}")
        if self.gpu.memory < GIB:
            raise ConfigError(f"a GPU of {self.gpu.memory} bytes: write its memory with a unit, such as 80GB")
        if not 0 < self.utilization <= 1:
            raise ConfigError(f"--gpu-memory-utilization must lie between 0 and 1, not {self.utilization}")
        if self.overhead < 0:
            raise ConfigError(f"--overhead must not be negative, not {self.overhead}")


@dataclass(frozen=True)
class Plan:
    """One tensor-parallel group of ``assumptions.count`` GPUs. Sizes are bytes; ``pool`` is each GPU's memory for the
    cache, negative where the weights do not fit. ``tokens`` counts those resident in sequences of ``context`` tokens.
    ``least_gpus`` is the smallest group that holds the weights and one such sequence, ``None`` if none does."""

    assumptions: Assumptions
    weights: WeightBytes
    token_bytes: float
    sequence_bytes: float
    pool: float
    tokens: int
    sequences: int
    least_gpus: int | None
    by_hand: bool = False  # sizes were given, not worked out


def make_plan(cfg: ModelConfig, program: Program, asked: Assumptions) -> Plan:
    """The plan for a model; pure arithmetic on its configuration and the shapes of its program."""
    if asked.context > cfg.context:
        raise ConfigError(f"context {asked.context} exceeds the {cfg.context} tokens that the model was trained for")
    if cfg.heads % asked.count:
        raise ConfigError(f"{cfg.heads} heads do not divide among {asked.count} GPUs: choose another --count")
    sizes = [1 << i for i in range(MOST_GPUS.bit_length()) if cfg.heads % (1 << i) == 0]
    least = next((n for n in sizes if _plan(cfg, program, replace(asked, count=n)).sequences), None)
    return replace(_plan(cfg, program, asked), least_gpus=least)


def plan_by_hand(weights: int, token_bytes: float, asked: Assumptions) -> Plan:
    """The plan for a model of which only sizes are known; weights and cache are taken to be shared out evenly."""
    cache = CacheBytes(token_bytes / asked.count, ())
    return replace(_fill(asked, WeightBytes(weights, weights / asked.count), cache), by_hand=True)


def _plan(cfg: ModelConfig, program: Program, asked: Assumptions) -> Plan:
    groups = program.groups
    if asked.index_everywhere:
        groups = tuple(
            replace(
                group,
                caches=tuple(
                    replace(cache, layers=cfg.layers) if isinstance(cache, IndexCache) else cache
                    for cache in group.caches
                ),
            )
            for group in groups
        )
    weights = weight_bytes(cfg, program, asked.weights, asked.count, mtp=asked.mtp)
    return _fill(asked, weights, cache_bytes(groups, asked.cache, asked.count))


def _fill(asked: Assumptions, weights: WeightBytes, cache: CacheBytes) -> Plan:
    pool = asked.gpu.memory * asked.utilization - weights.per_gpu - asked.overhead
    sequence = cache.of_sequence(asked.context)
    sequences = max(int(pool // sequence), 0)
    return Plan(
        assumptions=asked,
        weights=weights,
        token_bytes=cache.of_sequence(1),
        sequence_bytes=sequence,
        pool=pool,
        tokens=max(int(pool / sequence * asked.context), 0),
        sequences=sequences,
        least_gpus=None,
    )


def default_overhead(gpu: Gpu) -> int:
    """7 % of the memory: on 141 GB GPUs what published runs of Kimi-K2 leave free of weights and cache."""
    return int(gpu.memory * 0.07 // (GIB // 16)) * (GIB // 16)
