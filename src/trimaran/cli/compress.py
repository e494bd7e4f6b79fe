"""``trimaran compress``: a smaller copy of a model, for any engine."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trimaran.cli import flags
from trimaran.cli.sizes import parse_size

if TYPE_CHECKING:
    from trimaran.checkpoint import Checkpoint
    from trimaran.compress.plan import Report
    from trimaran.compress.recipe import Recipe

PAIR = ("fp8", "int4")
_MOST_TEXT = 1 << 20  # characters that are read
_FEWEST_TOKENS = 100


def compress(
    model: flags.Model,
    out: Annotated[Path, typer.Option("-o", "--out", metavar="DIR", help="A new folder.", show_default=False)],
    fmt: Annotated[str, typer.Option("--format", help="int4, fp8, codebook4 or codebook3.")] = "int4",
    group: Annotated[int, typer.Option("--group", help="int4: weights that share a scale: 32, 64 or 128.")] = 32,
    outliers: Annotated[
        float | None,
        typer.Option(
            "--outliers", help="codebook4, codebook3: percent of the weights kept apart: 0.45.", show_default=False
        ),
    ] = None,
    calibrate: Annotated[
        list[Path] | None,
        typer.Option(
            "--calibrate",
            metavar="TEXT",
            help="int4 and codebooks: a file of text (repeatable) to run through the model, to round by its inputs.",
            show_default=False,
        ),
    ] = None,
    experts_only: Annotated[
        bool, typer.Option("--experts-only", help="Compress routed experts and nothing else, as Kimi publishes models.")
    ] = False,
    pair: Annotated[
        bool, typer.Option("--pair", help="Write both: DIR/fp8 for prefill and DIR/int4 for decode.")
    ] = False,
    max_shard_size: Annotated[str, typer.Option("--max-shard-size", help="Largest file of weights.")] = "4GiB",
    offline: flags.Offline = False,
) -> None:
    """Write a smaller copy of a model's weights.

    Reads a few rows at a time, so memory does not limit the size. int4: compressed-tensors' pack-quantized,
    symmetric. fp8: e4m3 in blocks of 128 x 128. codebook4, codebook3: 16 or 8 levels for each output and single weights
    apart, which only Trimaran reads. The folder appears when it is whole.

    \b
    Examples:
      trimaran compress ./Qwen3-8B --format int4 --calibrate book.txt --calibrate code.txt -o Qwen3-8B-int4
      trimaran compress ./Qwen3-8B --format codebook4 --calibrate book.txt -o Qwen3-8B-cb4
      trimaran compress ./GLM-4.7 --format int4 --experts-only -o GLM-4.7-int4
      trimaran compress ./GLM-4.7 --pair -o GLM-4.7-pair
    """
    from trimaran.base.errors import ConfigError
    from trimaran.checkpoint import open_checkpoint
    from trimaran.checkpoint.progress import progress
    from trimaran.checkpoint.sources import resolve
    from trimaran.compress.codebook import OUTLIERS, Codebook
    from trimaran.compress.recipe import CompensatingRecipe, Fp8Blocks, Int4
    from trimaran.compress.run import compress as run
    from trimaran.text.hf_files import write_hf_files

    recipes: dict[str, Recipe] = {
        "fp8": Fp8Blocks(),
        "int4": Int4(group),
        "codebook4": Codebook(4, OUTLIERS if outliers is None else outliers),
        "codebook3": Codebook(3, OUTLIERS if outliers is None else outliers),
    }
    if fmt not in recipes:
        raise ConfigError(f"--format {fmt!r} is none of {', '.join(recipes)}")
    if outliers is not None and (pair or not isinstance(recipes[fmt], Codebook)):
        raise ConfigError("--outliers is for --format codebook4 and codebook3")
    if calibrate and (fmt == "fp8" and not pair):
        raise ConfigError("--calibrate is for --format int4, codebook4 and codebook3")
    most = parse_size(max_shard_size)
    if out.exists():
        raise ConfigError(f"{out} exists already; name a new folder")
    wanted = {out / name: recipe for name, recipe in recipes.items() if name in PAIR} if pair else {out: recipes[fmt]}
    with open_checkpoint(resolve(model, offline=offline).path) as checkpoint:
        files = partial(write_hf_files, checkpoint.metadata) if checkpoint.kind == "gguf" else None
        texts = _rows(checkpoint, calibrate) if calibrate else []
        for folder, recipe in wanted.items():
            with progress(f"to {folder}", "Compress") as report:
                done = run(
                    checkpoint,
                    recipe,
                    folder,
                    experts_only=experts_only,
                    max_shard=most,
                    report=report,
                    texts=texts if isinstance(recipe, CompensatingRecipe) else (),
                    add_files=files,
                )
            print(_summary(folder, done), flush=True)


def _rows(checkpoint: "Checkpoint", files: list[Path]) -> list[list[list[int]]]:
    """The text in each of ``files`` as rows of tokens."""
    from trimaran.base.errors import ConfigError
    from trimaran.calibration.texts import cut
    from trimaran.text.tokenizer import open_tokenizer

    tokenizer = open_tokenizer(checkpoint)
    found = []
    for file in files:
        try:
            with file.open(encoding="utf-8") as opened:
                ids = tokenizer.encode(opened.read(_MOST_TEXT))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--calibrate {file}: cannot be read as text ({error})") from error
        if len(ids) < _FEWEST_TOKENS:
            raise ConfigError(
                f"--calibrate {file} has {len(ids)} tokens; give at least {_FEWEST_TOKENS}, better 20,000"
            )
        found.append(cut(ids, tokenizer.encode_prompt("")))
    return found


def _summary(folder: Path, done: "Report") -> str:
    from trimaran.checkpoint.progress import megabytes

    lines = [
        f"{folder}: {megabytes(done.bytes_after)} of {megabytes(done.bytes_before)},"
        f" {done.matrices} matrices compressed",
        f"rounding: {done.rms:.4f} of the weights (root mean square)"
        + ("" if done.plain_error == done.error else f"; {done.plain_rms:.4f} if rounded to nearest"),
    ]
    if done.outputs:
        lines.append(
            f"outputs of matrices: {done.outputs_off(done.outputs_error):.4f} off for held-out text;"
            f" {done.outputs_off(done.outputs_alone):.4f} if rounded without calibration"
        )
    if done.unseen:
        lines.append(f"rounded without calibration: {done.unseen} matrices, which too little of the text went through")
    if done.again:
        lines.append(f"rounded a second time: {done.again} matrices, which the source has in 4 bits or fewer")
    for reason, kept in done.kept.items():
        lines.append(f"not compressed: {kept.tensors} tensors, {megabytes(kept.bytes)}: {reason}")
    return "\n".join(lines)
