"""``trimaran bench pools``."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from trimaran.cli import flags
from trimaran.cli.bench_flags import AsJson, Plots, Threads, numbers, show


def pools(
    model: flags.Model,
    threads: Threads = 0,
    steps: Annotated[str, typer.Option(help="Other step sizes of one engine to measure, comma-separated.")] = "128",
    streams: Annotated[int, typer.Option(min=1, help="Answers that run when the burst comes.")] = 8,
    stream_tokens: Annotated[int, typer.Option(min=2, help="New tokens of each.")] = 1000,
    prompts: Annotated[int, typer.Option(min=1, help="Prompts of the burst.")] = 6,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each.")] = 2048,
    every: Annotated[float, typer.Option(min=0.01, help="Seconds between two prompts of the burst.")] = 1.5,
    trace: Annotated[
        Path | None,
        typer.Option(help="Replay this too: CSV with TIMESTAMP,ContextTokens,GeneratedTokens.", show_default=False),
    ] = None,
    requests: Annotated[int, typer.Option(min=1, help="At most so many of the trace.")] = 60,
    time_scale: Annotated[float, typer.Option(min=0, help="Multiplies the trace's times.")] = 1.0,
    length_scale: Annotated[float, typer.Option(min=0.001, help="Multiplies the trace's lengths.")] = 0.25,
    pool_flags: Annotated[
        str, typer.Option(metavar="FLAGS", help="More flags of `trimaran serve` for the pools.", show_default=False)
    ] = "",
    goodput: Annotated[str, typer.Option(help="Goals in ms: ttft, tpot, e2e.")] = "ttft:10000 tpot:40",
    rounds: Annotated[int, typer.Option(min=1, help="Repeats of everything; all count together.")] = 2,
    vocab: Annotated[int, typer.Option(min=2, help="Token ids of prompts are below this.")] = 30_000,
    plot: Plots = None,
    as_json: AsJson = False,
) -> None:
    """Long prompts among running answers: one engine against a prefill and a decode pool on the same cores.

    TTFT is that of the burst's prompts, or of the trace's requests; ITL the gaps between pieces of text of the streams
    that run meanwhile, or of the trace's answers. Goodput is requests a second that met all goals.

    \b
    Examples:
      trimaran bench pools smollm2
      trimaran bench pools smollm2 --pool-flags "--prefill-kv bf16 --decode-weights int4 --decode-kv fp8"
      trimaran bench pools smollm2 --trace AzureLLMInferenceTrace_conv.csv --requests 100 --plot pools.svg
    """
    import asyncio

    from rich.console import Console

    from trimaran.base.processor import cpu_name
    from trimaran.bench.arrivals import Job, read_trace
    from trimaran.bench.machine import usable_cores
    from trimaran.bench.pictures import pools_plot
    from trimaran.bench.plot import check_plots
    from trimaran.bench.pools import burst, contenders, play, replay
    from trimaran.bench.pools_report import PoolsReport
    from trimaran.bench.serving import parse_goals

    check_plots(plot or ())
    goals = parse_goals(goodput)
    threads = threads or usable_cores()
    scenes = [burst(streams, Job(64, stream_tokens), prompts, Job(prompt_tokens, 16), every)]
    if trace is not None:
        jobs = read_trace(trace, requests, time_scale)
        scenes.append(replay(trace.name, jobs, length_scale, prompt_tokens))
    found = []
    with Console(stderr=True).status("starting") as status:
        for contender in contenders(threads, numbers("--steps", steps), shlex.split(pool_flags)):
            playing = play(model, contender, scenes, rounds, vocab, lambda text: status.update(text))
            found.append(asyncio.run(playing))
    runs = [[each[number] for each in found] for number in range(len(scenes))]
    report = PoolsReport(model, {"cpu": cpu_name(), "threads": threads}, scenes, runs, goals)
    show(report, as_json, plot, lambda: pools_plot(report.to_json()))
