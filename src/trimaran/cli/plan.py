"""``trimaran plan``: what a model needs of GPUs, before any is rented."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trimaran.cli.sizes import parse_size

if TYPE_CHECKING:
    from trimaran.plan.capacity import Plan
    from trimaran.plan.gpus import Gpu


def plan(
    model: Annotated[
        str | None,
        typer.Argument(
            help="A name from `trimaran models`, a config.json, a folder or a GGUF file.", show_default=False
        ),
    ] = None,
    gpu: Annotated[str, typer.Option("--gpu", help="h100, h200, b200, a100-40, a100-80, l40s, mi300x, rtx4090.")] = (
        "h200"
    ),
    gpu_memory: Annotated[
        str | None, typer.Option("--gpu-memory", help="Memory of one GPU, such as 139.8GiB, instead of --gpu's.")
    ] = None,
    count: Annotated[int, typer.Option("--count", help="GPUs that share one copy of the model.")] = 8,
    weights: Annotated[str, typer.Option("--weights", help="bf16, fp8 or int4.")] = "bf16",
    kv_cache: Annotated[str, typer.Option("--kv-cache-dtype", help="bf16, fp8, int8, int4 or int8/int4.")] = "bf16",
    skip_layers: Annotated[
        str,
        typer.Option(
            "--kv-cache-dtype-skip-layers", metavar="LAYERS", help="Layers that stay bf16, such as 0,1,sliding."
        ),
    ] = "",
    context: Annotated[
        int | None, typer.Option("--context", help="Tokens of a sequence; default: all that the model allows.")
    ] = None,
    utilization: Annotated[float, typer.Option("--gpu-memory-utilization", help="Share that may be used.")] = 0.9,
    overhead: Annotated[
        str | None, typer.Option("--overhead", help="Activations, graphs, communication; default: 7 % of the memory.")
    ] = None,
    index_everywhere: Annotated[
        bool, typer.Option("--index-everywhere", help="Allocate index keys in layers without indexer too.")
    ] = False,
    mtp: Annotated[bool, typer.Option("--mtp/--no-mtp", help="Load multi-token-prediction layers.")] = True,
    weight_bytes: Annotated[
        str | None, typer.Option("--weight-bytes", help="Without MODEL: bytes of all weights, such as 61GB.")
    ] = None,
    token_bytes: Annotated[
        str | None, typer.Option("--kv-bytes-per-token", help="Without MODEL: bytes of a token's cache, such as 36KB.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Work out how many tokens and sequences fit on GPUs beside a model's weights.

    Arithmetic on the model's config.json: nothing is loaded or measured. GPUs share one copy of the model by tensor
    parallelism. Sizes are read with GB = 10^9 and GiB = 2^30 bytes.

    \b
    Examples:
      trimaran plan kimi-k2.6 --gpu h200 --count 8 --weights int4 --kv-cache-dtype fp8
      trimaran plan ./config.json --gpu h100 --count 2 --context 32768 --json
      trimaran plan --weight-bytes 61GB --kv-bytes-per-token 36KB --gpu-memory 80GB --count 1 --context 32768
    """
    from trimaran.base.errors import ConfigError
    from trimaran.plan.cache import CacheRecipe
    from trimaran.plan.capacity import Assumptions, default_overhead, make_plan, plan_by_hand
    from trimaran.plan.weights import WeightRecipe

    device = _device(gpu, gpu_memory)
    common: dict[str, Any] = {
        "gpu": device,
        "count": count,
        "weights": _choice(WeightRecipe, weights, "--weights"),
        "cache": _choice(CacheRecipe, kv_cache, "--kv-cache-dtype"),
        "utilization": utilization,
        "overhead": default_overhead(device) if overhead is None else parse_size(overhead),
        "index_everywhere": index_everywhere,
        "mtp": mtp,
    }
    if model is None:
        if skip_layers:
            raise ConfigError("--kv-cache-dtype-skip-layers needs MODEL: sizes given by hand have no layers")
        if weight_bytes is None or token_bytes is None or context is None:
            raise ConfigError("give MODEL, or --weight-bytes, --kv-bytes-per-token and --context")
        made = plan_by_hand(parse_size(weight_bytes), parse_size(token_bytes), Assumptions(context=context, **common))
    else:
        from trimaran.kernels.wide_layers import keep_wide, parse_layers
        from trimaran.models.registry import build_program

        cfg = _read_config(model)
        program = keep_wide(build_program(cfg), parse_layers(skip_layers))
        made = make_plan(cfg, program, Assumptions(context=context or cfg.context, **common))
    print(json.dumps(_as_json(made), indent=2) if as_json else _table(made))


def _device(name: str, memory: str | None) -> "Gpu":
    from trimaran.plan.gpus import Gpu, find_gpu

    return find_gpu(name) if memory is None else Gpu("gpu", parse_size(memory))


def _choice(kind: Any, value: str, option: str) -> Any:
    from trimaran.base.errors import ConfigError

    try:
        return kind(value)
    except ValueError:
        raise ConfigError(f"{option} {value!r} is none of {', '.join(kind)}") from None


def _read_config(model: str) -> Any:
    from trimaran.base.errors import ConfigError
    from trimaran.checkpoint import open_checkpoint
    from trimaran.checkpoint.catalog import load_catalog
    from trimaran.checkpoint.sources import resolve
    from trimaran.models.registry import read_config, read_config_file
    from trimaran.plan.catalogue import catalogue_config

    if model in load_catalog():
        cfg = catalogue_config(model)
        if cfg is None:
            raise ConfigError(f"the catalogue does not know the sizes of {model}: give its config.json")
        return cfg
    path = Path(model)
    if path.is_dir() and not any(path.glob("*.safetensors")) and (path / "config.json").is_file():
        path = path / "config.json"
    if path.suffix == ".json":
        return read_config_file(path)
    with open_checkpoint(resolve(model).path) as checkpoint:
        return read_config(checkpoint)


def _as_json(made: "Plan") -> dict[str, Any]:
    asked = made.assumptions
    return {
        "gpu": asked.gpu.name,
        "gpu_memory_bytes": asked.gpu.memory,
        "gpus": asked.count,
        "gpu_memory_utilization": asked.utilization,
        "overhead_bytes": asked.overhead,
        "weights": asked.weights.value,
        "kv_cache_dtype": asked.cache.value,
        "context": asked.context,
        "index_everywhere": asked.index_everywhere,
        "mtp": asked.mtp,
        "weight_bytes": round(made.weights.total),
        "weight_bytes_per_gpu": round(made.weights.per_gpu),
        "kv_bytes_per_token_per_gpu": made.token_bytes,
        "kv_bytes_per_sequence_per_gpu": round(made.sequence_bytes),
        "kv_pool_bytes_per_gpu": round(made.pool),
        "tokens": made.tokens,
        "sequences": made.sequences,
        "least_gpus": made.least_gpus,
    }


def _table(made: "Plan") -> str:
    asked, gib = made.assumptions, 2**30
    each = f"{asked.gpu.memory / gib:,.1f} GiB each, {asked.utilization:.0%} used"
    held = "" if made.by_hand else f" as {asked.weights}"
    cached = "" if made.by_hand else f", as {asked.cache}"
    lines = [
        ("weights", f"{made.weights.total / gib:,.1f} GiB ({made.weights.total / 1e9:,.1f} GB){held}"),
        (
            "weights per GPU",
            f"{made.weights.per_gpu / gib:,.1f} GiB ({made.weights.total / asked.count / gib:,.1f} if all were cut)",
        ),
        ("cache of a token", f"{made.token_bytes:,.0f} bytes on each GPU{cached}"),
        ("cache of a sequence", f"{made.sequence_bytes / gib:,.2f} GiB on each GPU for {asked.context:,} tokens"),
        ("left for the cache", f"{made.pool / gib:,.1f} GiB on each GPU"),
        ("tokens resident", f"{made.tokens:,}"),
        ("sequences at once", f"{made.sequences:,} of {asked.context:,} tokens"),
    ]
    if made.least_gpus is not None:
        lines.append(("least GPUs", f"{made.least_gpus} of this kind, for one sequence of {asked.context:,} tokens"))
    assumed = (
        f"assumed: {asked.count} x {asked.gpu.name}, {each}, "
        f"{asked.overhead / gib:,.1f} GiB for all but weights and cache"
        + (", index keys in every layer" if asked.index_everywhere else "")
        + ("" if asked.mtp else ", no multi-token-prediction layers")
    )
    width = max(len(name) for name, _ in lines)
    return "\n".join([*(f"{name.ljust(width)}  {value}" for name, value in lines), assumed])
