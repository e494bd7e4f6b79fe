"""How long a context and how many pages an engine gets: from the options, the model and the machine, before anything is
allocated."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trimaran.base.errors import ConfigError
from trimaran.base.formats import ActivationFormat, CacheGroup, KVFormat
from trimaran.engine.config import EngineConfig
from trimaran.kernels.weights import Weight

MEMORY_SHARE = 0.25  # of the memory that is available at start; the weights are loaded already


@dataclass(frozen=True)
class Sizes:
    """Resolved sizes. ``num_pages`` counts the null page."""

    context: int
    kv_format: KVFormat
    num_pages: int
    kv_bytes: int


def kv_format_beside(weights: Mapping[str, Weight], activations: ActivationFormat) -> KVFormat:
    """What pages hold when nobody says: int8 where weights meet int8 activations, which cost more exactness than such
    pages do (``python bench/parity.py smollm2``); bf16 elsewhere."""
    quantised = activations is ActivationFormat.INT8 and any(weight.fmt.quantised for weight in weights.values())
    return KVFormat.INT8 if quantised else KVFormat.BF16


def resolve_sizes(
    config: EngineConfig, group: CacheGroup, kv_format: KVFormat, model_context: int, available_bytes: int
) -> Sizes:
    """Pure: the same arguments give the same sizes.

    Raises ``ConfigError`` when the context asked for exceeds the model's, or when not even one sequence of full length
    fits the memory for pages.
    """
    context = config.max_model_len or model_context
    if context > model_context:
        raise ConfigError(f"max_model_len {context} exceeds the {model_context} tokens that the model was trained for")
    page_bytes = group.page_bytes(kv_format, config.page_size)
    a_sequence = -(-context // config.page_size)
    wanted = config.max_num_seqs * a_sequence
    budget = config.kv_memory_bytes if config.kv_memory_bytes is not None else int(available_bytes * MEMORY_SHARE)
    pages = min(wanted, budget // page_bytes)
    if pages < a_sequence:
        shorter = f"lower max_model_len to at most {pages * config.page_size}, or " if pages else ""
        raise ConfigError(
            f"one sequence of {context} tokens needs {_mib(a_sequence * page_bytes)} of KV pages and only "
            f"{_mib(budget)} may be used: {shorter}raise kv_memory_bytes"
        )
    return Sizes(context=context, kv_format=kv_format, num_pages=pages + 1, kv_bytes=(pages + 1) * page_bytes)


def available_memory() -> int:
    """Bytes that this process may still take without swapping: what the machine has left, or its control group."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            found.append(int(line.split()[1]) * 1024)
    for limit, usage in _CGROUPS:
        if (bound := _read(limit).strip()).isdigit():  # "max": no limit
            found.append(max(0, int(bound) - int(_read(usage))))
    return min(found)


_CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
