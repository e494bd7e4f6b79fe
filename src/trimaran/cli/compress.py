"""``trimaran compress``: a smaller copy of a model, for any engine."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trimaran.cli import flags
from trimaran.cli.sizes import parse_size

if TYPE_CHECKING:
    from trimaran.compress.plan import Report
    from trimaran.compress.recipe import Recipe


def compress(
    model: flags.Model,
    out: Annotated[Path, typer.Option("-o", "--out", metavar="DIR", help="A new folder.", show_default=False)],
    fmt: Annotated[str, typer.Option("--format", help="int4 or fp8.")] = "int4",
    group: Annotated[int, typer.Option("--group", help="int4: weights that share a scale: 32, 64 or 128.")] = 32,
    experts_only: Annotated[
        bool, typer.Option("--experts-only", help="Compress routed experts and nothing else, as Kimi publishes models.")
    ] = False,
    pair: Annotated[
        bool, typer.Option("--pair", help="Write both: DIR/fp8 for prefill and DIR/int4 for decode.")
    ] = False,
    max_shard_size: Annotated[str, typer.Option("--max-shard-size", help="Largest file of weights.")] = "4GiB",
    offline: flags.Offline = False,
) -> None:
    """Write a smaller copy of a model's weights, in formats that other engines read too.

    Reads safetensors a few rows at a time, so memory does not limit the size. int4: compressed-tensors' pack-quantized,
    symmetric. fp8: e4m3 in blocks of 128 x 128. The folder appears when it is whole.

    \b
    Examples:
      trimaran compress ./Qwen3-8B --format int4 --group 32 -o Qwen3-8B-int4
      trimaran compress ./GLM-4.7 --format int4 --experts-only -o GLM-4.7-int4
      trimaran compress ./GLM-4.7 --pair -o GLM-4.7-pair
    """
    from trimaran.base.errors import ConfigError
    from trimaran.checkpoint import open_checkpoint
    from trimaran.checkpoint.progress import progress
    from trimaran.checkpoint.sources import resolve
    from trimaran.compress.recipe import Fp8Blocks, Int4
    from trimaran.compress.run import compress as run

    recipes: dict[str, Recipe] = {"fp8": Fp8Blocks(), "int4": Int4(group)}
    if fmt not in recipes:
        raise ConfigError(f"--format {fmt!r} is none of {', '.join(recipes)}")
    most = parse_size(max_shard_size)
    if pair and out.exists():
        raise ConfigError(f"{out} exists already; name a new folder")
    wanted = {out / name: recipe for name, recipe in recipes.items()} if pair else {out: recipes[fmt]}
    with open_checkpoint(resolve(model, offline=offline).path) as checkpoint:
        for folder, recipe in wanted.items():
            with progress(f"to {folder}", "Compress") as report:
                done = run(checkpoint, recipe, folder, experts_only=experts_only, max_shard=most, report=report)
            print(_summary(folder, done), flush=True)


def _summary(folder: Path, done: "Report") -> str:
    from trimaran.checkpoint.progress import megabytes

    lines = [
        f"{folder}: {megabytes(done.bytes_after)} of {megabytes(done.bytes_before)},"
        f" {done.matrices} matrices compressed",
        f"rounding: {done.rms:.4f} of the weights (root mean square)"
        + ("" if done.plain_error == done.error else f"; {done.plain_rms:.4f} if rounded to nearest"),
    ]
    for reason, kept in done.kept.items():
        lines.append(f"not compressed: {kept.tensors} tensors, {megabytes(kept.bytes)}: {reason}")
    return "\n".join(lines)
