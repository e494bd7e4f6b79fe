"""``trimaran calibrate``: how large a model's keys and values become."""

from pathlib import Path
from typing import Annotated

import typer

from trimaran.cli import flags


def calibrate(
    model: flags.Model,
    text: Annotated[
        list[Path] | None,
        typer.Option("--text", metavar="FILE", help="Text to run (repeatable); default: one that comes along."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FILE", help="Where to write; default: the cache.", show_default=False),
    ] = None,
    offline: flags.Offline = False,
) -> None:
    """Measure the scales that --kv-cache-dtype fp8-static and int8-static need, and print where they were written.

    Runs text through MODEL and keeps the largest keys and values of every layer and kv head. What is written to the
    cache is found by itself when the model is served; another file is named with --kv-cache-scales.

    \b
    Examples:
      trimaran calibrate smollm2
      trimaran serve smollm2 --kv-cache-dtype int8-static
      trimaran calibrate ./Qwen3-8B --text chats.txt --text code.txt -o scales.json
      trimaran serve ./Qwen3-8B --kv-cache-dtype fp8-static --kv-cache-scales scales.json
    """
    from rich.console import Console

    from trimaran.base.errors import ConfigError
    from trimaran.kvcache import calibrate as run

    texts = None
    if text:
        try:
            texts = [path.read_text("utf-8") for path in text]
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--text: {error}") from error
    with Console(stderr=True).status(f"running text through {model}"):
        path = run(model, texts, out, offline=offline)
    print(path)
