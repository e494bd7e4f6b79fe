"""``trimaran eval``: what a configuration costs in quality."""

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trimaran.cli import flags
from trimaran.cli.flags import Pages, Weights

if TYPE_CHECKING:
    from trimaran.evaluate.configuration import Formats
    from trimaran.kernels.wide_layers import Layer
    from trimaran.text.tokenizer import Tokenizer

app = typer.Typer(no_args_is_help=True, help="Measure what a configuration costs in quality.")


@app.callback()
def root() -> None:
    """Measure what a configuration costs in quality."""


@app.command()
def quality(
    model: flags.Model,
    against: Annotated[
        str | None,
        typer.Option(metavar="REF", help="The reference, of the same vocabulary; default: MODEL.", show_default=False),
    ] = None,
    weight_format: flags.WeightFormat = Weights.AUTO,
    kv_cache_dtype: Annotated[
        list[Pages] | None,
        typer.Option("--kv-cache-dtype", help="As for serve; several (repeatable) are measured in turn."),
    ] = None,
    kv_cache_scales: flags.KVCacheScales = None,
    kv_cache_dtype_skip_layers: flags.KVSkipLayers = "",
    prefill: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", help="What prefills, if another file does, as of `compress --pair`.", show_default=False
        ),
    ] = None,
    prefill_weight_format: Annotated[
        Weights | None, typer.Option(help="Weights while prefilling, if others.", show_default=False)
    ] = None,
    prefill_kv_cache_dtype: Annotated[
        Pages | None,
        typer.Option("--prefill-kv-cache-dtype", help="Pages while prefilling, if others.", show_default=False),
    ] = None,
    against_weight_format: Annotated[
        Weights | None,
        typer.Option(help="Of the reference; default: as MODEL, with --against: auto.", show_default=False),
    ] = None,
    against_kv_cache_dtype: Annotated[
        Pages, typer.Option("--against-kv-cache-dtype", help="Of the reference.")
    ] = Pages.BF16,
    activations: Annotated[
        str,
        typer.Option(help="What quantised weights meet: int8, as when serving, or fp32 to see nothing but formats."),
    ] = "int8",
    only: Annotated[str, typer.Option(help="Sections, comma-separated.")] = "kl,tasks,needle,validity,code",
    text: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="Text to read for KL (repeatable); default: three of ours.", show_default=False
        ),
    ] = None,
    tokens: Annotated[int, typer.Option(min=8, help="Most tokens of each text.")] = 448,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE.jsonl", help="Questions in place of PIQA and BoolQ (repeatable).", show_default=False
        ),
    ] = None,
    items: Annotated[
        int | None, typer.Option(min=1, help="Most questions of each set; default: all.", show_default=False)
    ] = None,
    max_loss: Annotated[
        float, typer.Option(help="Most accuracy that the tasks may lose, in points: of the upper 95 % bound.")
    ] = 0.8,
    max_kl: Annotated[float | None, typer.Option(help="Most mean KL, in nats.", show_default=False)] = None,
    executor: flags.Executor = "native",
    threads: flags.Threads = 0,
    offline: flags.Offline = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """What formats of weights and pages cost: KL, perplexity, tasks, needle, JSON and tool calls, code.

    The reference has the same weights and bf16 pages unless you name another. The exit status is 1 when a limit is
    passed. PIQA and BoolQ (4,770 questions) are fetched once, 20 MB; docs/quality.md explains every figure.

    \b
    Examples:
      trimaran eval quality smollm2 --kv-cache-dtype int8 --kv-cache-dtype fp8
      trimaran eval quality smollm2 --only kl --max-kl 0.01 --text my.txt
      trimaran eval quality ./Qwen3-8B-int4 --against ./Qwen3-8B
      trimaran eval quality pair/int4 --prefill pair/fp8 --against ./GLM-4.7 --json
    """
    from rich.console import Console

    from trimaran.base.errors import ConfigError
    from trimaran.base.formats import ActivationFormat
    from trimaran.evaluate.configuration import Configuration, Formats
    from trimaran.evaluate.report import Limits, to_json, to_text
    from trimaran.evaluate.run import measure
    from trimaran.evaluate.suite import SECTIONS, prepare, require_same_tokens
    from trimaran.kernels.wide_layers import parse_layers

    sections = [each.strip() for each in only.split(",")]
    if unknown := [each for each in sections if each not in SECTIONS]:
        raise ConfigError(f"--only {unknown[0]!r} is none of {', '.join(SECTIONS)}")
    if activations not in list(ActivationFormat):
        raise ConfigError(f"--activations {activations!r} is none of {', '.join(ActivationFormat)}")
    if executor not in ("native", "reference"):
        raise ConfigError(f"--executor {executor!r} computes nothing to measure; choose native or reference")
    blank = Configuration("", Formats(Path()), None, ActivationFormat(activations), executor, threads)
    opened = _open(model, offline)
    if against_weight_format is None:
        against_weight_format = weight_format if against is None else Weights.AUTO
    other = opened if against is None else _open(against, offline)
    in_two = prefill is not None or prefill_weight_format is not None or prefill_kv_cache_dtype is not None
    prefiller = _open(prefill, offline).path if prefill is not None else opened.path
    skipped = parse_layers(kv_cache_dtype_skip_layers)
    candidates = []
    for pages in kv_cache_dtype or [Pages.AUTO]:
        formats = _formats(opened.path, weight_format, pages, kv_cache_scales, skipped)
        first_pages = prefill_kv_cache_dtype or pages
        first = _formats(prefiller, prefill_weight_format or weight_format, first_pages, kv_cache_scales, skipped)
        candidates.append(replace(blank, name=pages.value, formats=formats, prefill=first if in_two else None))
    held = _formats(other.path, against_weight_format, against_kv_cache_dtype)
    reference = replace(blank, name="reference", formats=held)
    with Console(stderr=True).status("preparing") as status:
        suite = prepare(
            opened.tokenizer,
            min(opened.context, other.context),
            sections,
            texts=text or (),
            tokens=tokens,
            data=data or (),
            items=items,
            offline=offline,
        )
        if against is not None:
            require_same_tokens(opened.tokenizer, other.tokenizer)
        costs = measure(
            reference, candidates, suite, opened.tokenizer, opened.eos_ids, lambda line: status.update(line)
        )
    limits = Limits(max_loss, max_kl)
    setup = {"reference": reference, "candidates": candidates, "left_out": suite.left_out}
    print(json.dumps(to_json(setup, costs, limits), indent=2) if as_json else to_text(costs, limits))
    if suite.left_out:
        print(f"{suite.left_out} items are longer than the model's context and were left out", file=sys.stderr)
    if any(limits.misses(cost) for cost in costs):
        raise typer.Exit(1)


@dataclass(frozen=True)
class _Opened:
    """What is needed of a model beside its weights."""

    path: Path
    tokenizer: "Tokenizer"
    context: int
    eos_ids: frozenset[int]


def _open(model: str, offline: bool) -> _Opened:
    from trimaran.checkpoint import open_checkpoint
    from trimaran.checkpoint.sources import resolve
    from trimaran.models.registry import read_config
    from trimaran.text.tokenizer import open_tokenizer

    path = resolve(model, offline=offline).path
    with open_checkpoint(path) as checkpoint:
        config = read_config(checkpoint)
        return _Opened(path, open_tokenizer(checkpoint), config.context, config.eos_ids)


def _formats(
    path: Path, weights: Weights, pages: Pages, scales: str | None = None, skip_layers: "tuple[Layer, ...]" = ()
) -> "Formats":
    from trimaran.base.formats import KVFormat, WeightFormat
    from trimaran.evaluate.configuration import Formats

    kv = None if pages is Pages.AUTO else KVFormat(pages.value)
    return Formats(
        path,
        None if weights is Weights.AUTO else WeightFormat(weights.value),
        kv,
        scales if kv is not None and kv.static else None,
        skip_layers,
    )
