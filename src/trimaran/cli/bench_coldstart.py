"""``trimaran bench coldstart``: how soon a server is ready, and what the time goes to."""

import json
from typing import Annotated

import typer

from trimaran.cli import flags
from trimaran.cli.bench_flags import AsJson, Rounds, Threads


def coldstart(
    model: flags.Model,
    rounds: Rounds = 5,
    threads: Threads = 0,
    simulate_mbps: Annotated[
        float | None,
        typer.Option(
            "--simulate-mbps",
            min=0.1,
            metavar="MB/S",
            help="Also fetch the model, cut into shards, from a hub that gives each connection so many megabytes/s.",
            show_default=False,
        ),
    ] = None,
    connections: Annotated[int, typer.Option(min=1, max=64, help="With --simulate-mbps: at once.")] = 8,
    as_json: AsJson = False,
) -> None:
    """How soon `trimaran serve` is ready, and what the time goes to: from the model's files and from packed weights,
    with and without verification.

    Every way is started in turn, from a warm file cache, with packed weights in a folder of its own. With
    --simulate-mbps a hub on the loopback interface serves the model in shards: one connection, then hashing, then
    loading, beside what `serve` does.

    \b
    Examples:
      trimaran bench coldstart smollm2
      trimaran bench coldstart smollm2 --rounds 1 --simulate-mbps 20
    """
    from rich.console import Console

    from trimaran.bench.coldstart import run_coldstart
    from trimaran.bench.far_start import run_far_start
    from trimaran.checkpoint.sources import resolve

    path = resolve(model).path
    with Console(stderr=True).status("starting") as status:
        report = run_coldstart(path, rounds, threads, lambda text: status.update(text))
        far = None
        if simulate_mbps is not None:
            far = run_far_start(path, simulate_mbps, connections, threads, lambda text: status.update(text))
    if as_json:
        print(json.dumps({**report.to_json(), "far": None if far is None else far.to_json()}, indent=2))
        return
    print(report.to_text())
    if far is not None:
        print(f"\n{far.to_text()}")
