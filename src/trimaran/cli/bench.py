"""``trimaran bench``: speed, beside the machine's physical floor and beside a peer measured in the same run."""

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from trimaran.bench.cases import Case

app = typer.Typer(no_args_is_help=True, help="Measure speed, with its share of the machine's floor.")


class Weights(StrEnum):
    AUTO = "auto"
    FP32 = "fp32"
    BF16 = "bf16"
    INT8 = "int8"
    INT4 = "int4"
    INT4Z = "int4z"


class Pages(StrEnum):
    AUTO = "auto"
    BF16 = "bf16"
    FP32 = "fp32"


class Peer(StrEnum):
    LLAMA_CPP = "llama.cpp"


Model = Annotated[str, typer.Argument(help="Catalogue name, source or path of the model.", show_default=False)]
WeightOption = Annotated[Weights, typer.Option("--weight-format", help="How weights are held; auto: as in the file.")]
PageOption = Annotated[Pages, typer.Option("--kv-cache-dtype", help="How keys and values are held; auto: bf16.")]
Threads = Annotated[int, typer.Option(min=0, help="Compute threads, for peers too; 0: one per core.")]
Rounds = Annotated[int, typer.Option(min=1, help="Repeats of everything; medians are reported.")]
PeerOption = Annotated[
    Peer | None, typer.Option("--peer", help="Measure this too, in the same run.", show_default=False)
]
Folder = Annotated[Path, typer.Option("--peers-dir", help="Where `make peers` left its programs.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, with every round, instead of a table.")]


@app.command()
def latency(
    model: Model,
    length: Annotated[str, typer.Option(help="Prompt lengths to prefill, comma-separated.")] = "16,512,2048",
    depth: Annotated[str, typer.Option(help="Context lengths to decode at, comma-separated.")] = "128,2048",
    steps: Annotated[int, typer.Option(min=1, help="Decode steps.")] = 64,
    weight_format: WeightOption = Weights.AUTO,
    kv_cache_dtype: PageOption = Pages.AUTO,
    threads: Threads = 0,
    rounds: Rounds = 3,
    peer: PeerOption = None,
    peers_dir: Folder = Path(".peers/bin"),
    as_json: AsJson = False,
) -> None:
    """One sequence at a time: prefill and decode tokens/s, and the time to the first token.

    The column `ms` is the time to a prompt's first token, or of one decode step. `executor` is the same without
    the engine around it: the difference is what Python costs.

    \b
    Examples:
      trimaran bench latency smollm2
      trimaran bench latency smollm2 --peer llama.cpp
      trimaran bench latency smollm2 --weight-format bf16 --length 128 --depth 128 --json
    """
    from trimaran.bench.cases import latency_cases

    cases = latency_cases(_numbers("--length", length), _numbers("--depth", depth), steps)
    _measure(cases, model, weight_format, kv_cache_dtype, threads, rounds, peer, peers_dir, as_json)


@app.command()
def throughput(
    model: Model,
    sequences: Annotated[str, typer.Option(help="How many decode together, comma-separated.")] = "1,4,8,16,32,64",
    depth: Annotated[int, typer.Option(min=1, help="Prompt tokens of each sequence.")] = 128,
    steps: Annotated[int, typer.Option(min=1, help="Decode steps.")] = 32,
    requests: Annotated[int, typer.Option(min=1, help="Requests of the mixed case.")] = 64,
    weight_format: WeightOption = Weights.AUTO,
    kv_cache_dtype: PageOption = Pages.AUTO,
    threads: Threads = 0,
    rounds: Rounds = 3,
    peer: PeerOption = None,
    peers_dir: Folder = Path(".peers/bin"),
    as_json: AsJson = False,
) -> None:
    """Many sequences at once: decode tokens/s of all together, and whole batches from the first prompt token on.

    The column `ms` is the time of one decode step, or of a whole batch.

    \b
    Examples:
      trimaran bench throughput smollm2
      trimaran bench throughput smollm2 --peer llama.cpp --rounds 1
      trimaran bench throughput smollm2 --sequences 8,32 --depth 1024
    """
    from trimaran.bench.cases import throughput_cases

    cases = throughput_cases(_numbers("--sequences", sequences), depth, steps, requests)
    _measure(cases, model, weight_format, kv_cache_dtype, threads, rounds, peer, peers_dir, as_json)


def _numbers(option: str, text: str) -> list[int]:
    try:
        numbers = [int(item) for item in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise typer.BadParameter(f"{option} takes positive numbers with commas between them, not {text!r}")
    return numbers


def _measure(
    cases: "list[Case]",
    model: str,
    weight_format: Weights,
    kv_cache_dtype: Pages,
    threads: int,
    rounds: int,
    peer: Peer | None,
    peers_dir: Path,
    as_json: bool,
) -> None:
    from rich.console import Console

    from trimaran.base.formats import KVFormat, WeightFormat
    from trimaran.bench.run import Setup, run
    from trimaran.checkpoint.sources import resolve

    setup = Setup(
        model=resolve(model).path,
        weight_format=None if weight_format is Weights.AUTO else WeightFormat(weight_format.value),
        kv_format=KVFormat.BF16 if kv_cache_dtype is Pages.AUTO else KVFormat(kv_cache_dtype.value),
        threads=threads,
        rounds=rounds,
        peers=peers_dir if peer else None,
    )
    console = Console(stderr=True)
    with console.status("starting") as status:
        report = run(setup, cases, lambda text: status.update(text))
    print(json.dumps(report.to_json(), indent=2) if as_json else report.to_text())
