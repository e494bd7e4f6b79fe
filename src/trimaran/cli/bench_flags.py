"""Flags that several commands of ``trimaran bench`` share, and how their results are shown."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Threads = Annotated[int, typer.Option(min=0, help="Compute threads, for peers too; 0: one per core.")]
Overlap = Annotated[
    bool, typer.Option("--overlap/--no-overlap", help="Whether the engine sends and receives while a step runs.")
]
Rounds = Annotated[int, typer.Option(min=1, help="Repeats of everything; medians are reported.")]
PeerNames = Annotated[
    list[str] | None,
    typer.Option(
        "--peer",
        metavar="NAME|URL",
        help="Measure this too, in turn (repeatable): llama.cpp, openvino, vllm, or an OpenAI server's address.",
        show_default=False,
    ),
]
Folder = Annotated[Path, typer.Option("--peers-dir", help="Where `make peers` left its programs.")]
PeerPython = Annotated[
    Path | None,
    typer.Option("--peer-python", help="For vllm: the python of an environment that has it.", show_default=False),
]
PeerModel = Annotated[
    Path | None,
    typer.Option("--peer-model", help="For vllm: a folder with the same model, if MODEL is none.", show_default=False),
]
OverHttp = Annotated[bool, typer.Option("--http", help="Measure `trimaran serve` too, through HTTP.")]
Plots = Annotated[
    list[Path] | None,
    typer.Option(
        "--plot", metavar="FILE", help="Draw the figures too: .svg, .png or .html (repeatable).", show_default=False
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, with every round, instead of a table.")]


class Showable(Protocol):
    """A report for people and for programs."""

    def to_json(self) -> dict[str, Any]: ...

    def to_text(self) -> str: ...


def show(report: Showable, as_json: bool, plots: Sequence[Path] | None, draw: "Callable[[], Figure]") -> None:
    """Prints the report, then draws it: what took minutes is there even if a picture cannot be written."""
    from trimaran.bench.plot import save

    text = report.to_text()
    print(json.dumps(report.to_json(), indent=2) if as_json else text)
    for path in plots or ():
        save(draw(), path, text)


def numbers(option: str, text: str) -> list[int]:
    """Positive whole numbers with commas between them; raises ``typer.BadParameter`` naming the ``option``."""
    try:
        found = [int(item) for item in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise typer.BadParameter(f"{option} takes positive numbers with commas between them, not {text!r}")
    return found
