"""``trimaran bench``: speed beside the machine's physical floor and a peer, and of any server under load."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trimaran.cli import bench_coldstart, bench_formats, bench_pools, flags
from trimaran.cli.bench_flags import (
    AsJson,
    Folder,
    OverHttp,
    Overlap,
    PeerModel,
    PeerNames,
    PeerPython,
    Plots,
    Rounds,
    Threads,
    numbers,
    show,
)
from trimaran.cli.flags import Pages, Weights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trimaran.bench.cases import Case
    from trimaran.bench.peers import Peers

app = typer.Typer(no_args_is_help=True, help="Measure speed, with its share of the machine's floor.")
app.command()(bench_formats.kv)
app.command()(bench_formats.weights)
app.command()(bench_formats.integrity)
app.command()(bench_coldstart.coldstart)
app.command()(bench_pools.pools)


@app.command()
def latency(
    model: flags.Model,
    length: Annotated[str, typer.Option(help="Prompt lengths to prefill, comma-separated.")] = "16,512,2048",
    depth: Annotated[str, typer.Option(help="Context lengths to decode at, comma-separated.")] = "128,2048",
    steps: Annotated[int, typer.Option(min=1, help="Decode steps.")] = 64,
    weight_format: flags.WeightFormat = Weights.AUTO,
    kv_cache_dtype: flags.KVCacheDtype = Pages.AUTO,
    threads: Threads = 0,
    overlap: Overlap = True,
    rounds: Rounds = 3,
    peer: PeerNames = None,
    peers_dir: Folder = Path(".peers/bin"),
    peer_python: PeerPython = None,
    peer_model: PeerModel = None,
    http: OverHttp = False,
    plot: Plots = None,
    as_json: AsJson = False,
) -> None:
    """One sequence at a time: prefill and decode tokens/s, and the time to the first token.

    The column `ms` is the time to a prompt's first token, or of one decode step, which has to read `MB/step`: weights,
    of experts those of one token, and the cache. `executor` is the same without
    the engine around it: the difference is what Python costs. `x best` compares with the best of all peers.

    \b
    Examples:
      trimaran bench latency smollm2
      trimaran bench latency smollm2 --peer llama.cpp --peer openvino --http --rounds 5
      trimaran bench latency smollm2 --weight-format bf16 --length 128 --depth 128 --json
    """
    from trimaran.bench.cases import latency_cases
    from trimaran.bench.peers import Peers

    cases = latency_cases(numbers("--length", length), numbers("--depth", depth), steps)
    peers = Peers(tuple(peer or ()), peers_dir, peer_python, peer_model)
    _measure(cases, model, weight_format, kv_cache_dtype, threads, overlap, rounds, peers, http, plot, as_json)


@app.command()
def throughput(
    model: flags.Model,
    sequences: Annotated[str, typer.Option(help="How many decode together, comma-separated.")] = "1,4,8,16,32,64",
    depth: Annotated[int, typer.Option(min=1, help="Prompt tokens of each sequence.")] = 128,
    steps: Annotated[int, typer.Option(min=1, help="Decode steps.")] = 32,
    output: Annotated[int, typer.Option(min=1, help="New tokens of each request of the whole batch.")] = 128,
    requests: Annotated[int, typer.Option(min=1, help="Requests of the mixed case.")] = 64,
    weight_format: flags.WeightFormat = Weights.AUTO,
    kv_cache_dtype: flags.KVCacheDtype = Pages.AUTO,
    threads: Threads = 0,
    overlap: Overlap = True,
    rounds: Rounds = 3,
    peer: PeerNames = None,
    peers_dir: Folder = Path(".peers/bin"),
    peer_python: PeerPython = None,
    peer_model: PeerModel = None,
    http: OverHttp = False,
    plot: Plots = None,
    as_json: AsJson = False,
) -> None:
    """Many sequences at once: decode tokens/s of all together, and whole batches from the first prompt token on.

    The column `ms` is the time of one decode step, which has to read `MB/step` (of experts as many as its tokens are
    likely to go to), or of a whole batch.

    \b
    Examples:
      trimaran bench throughput smollm2
      trimaran bench throughput smollm2 --peer llama.cpp --peer openvino --rounds 5
      trimaran bench throughput smollm2 --peer http://127.0.0.1:8080
      trimaran bench throughput smollm2 --sequences 8,32 --depth 1024
    """
    from trimaran.bench.cases import throughput_cases
    from trimaran.bench.peers import Peers

    cases = throughput_cases(numbers("--sequences", sequences), depth, steps, output, requests)
    peers = Peers(tuple(peer or ()), peers_dir, peer_python, peer_model)
    _measure(cases, model, weight_format, kv_cache_dtype, threads, overlap, rounds, peers, http, plot, as_json)


@app.command()
def limits(threads: Threads = 0, as_json: AsJson = False) -> None:
    """What this machine can do at best: what every share of the floor is a share of.

    Read bandwidth by footprint, peak operations (a multiply-add is two), and what the thread team takes to start a step
    and to go from one op to the next. Rates are the best of several passes; keep the machine quiet meanwhile.

    \b
    Examples:
      trimaran bench limits
      trimaran bench limits --threads 8 --json
    """
    from rich.console import Console

    from trimaran.bench.limits import measure
    from trimaran.bench.machine import usable_cores

    with Console(stderr=True).status("starting") as status:
        found = measure(threads or usable_cores(), lambda text: status.update(text))
    print(json.dumps(found.to_json(), indent=2) if as_json else found.to_text())


@app.command()
def serve(
    url: Annotated[str, typer.Option(help="The server, with or without /v1.")] = "http://127.0.0.1:8000",
    model: Annotated[
        str | None, typer.Option(help="Its model; default: the first it names.", show_default=False)
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="TRIMARAN_API_KEY", help="Its key.", show_default=False, show_envvar=True)
    ] = None,
    rate: Annotated[
        float | None, typer.Option(min=1e-6, help="Open loop: requests a second, at Poisson times.", show_default=False)
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, max=4096, help="Closed loop: so many at a time; default 1.", show_default=False)
    ] = None,
    requests: Annotated[int, typer.Option(min=1, help="Requests, or at most so many of the trace.")] = 100,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")] = 128,
    output_tokens: Annotated[int, typer.Option(min=1, help="Tokens to ask for (max_tokens).")] = 128,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="CSV with TIMESTAMP,ContextTokens,GeneratedTokens: lengths, and times unless --rate or --concurrency.",
            show_default=False,
        ),
    ] = None,
    time_scale: Annotated[
        float, typer.Option(min=0, max=1e6, help="Multiplies the trace's times; 0.5: twice as fast.")
    ] = 1.0,
    chat: Annotated[bool, typer.Option("--chat", help="/v1/chat/completions; prompts are words.")] = False,
    text: Annotated[
        bool, typer.Option("--text", help="Prompts are words, for servers that take no token ids.")
    ] = False,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Never stop early, where the server knows ignore_eos.")
    ] = False,
    vocab: Annotated[int, typer.Option(min=2, help="Token ids of prompts are below this.")] = 30_000,
    goodput: Annotated[str, typer.Option(help="Goals in ms: ttft, tpot, e2e.", show_default=False)] = "",
    warm_up: Annotated[int, typer.Option(min=0, help="Requests sent one by one before, uncounted.")] = 1,
    timeout: Annotated[float, typer.Option(min=0.001, max=86400, help="Seconds that a request may take.")] = 300.0,
    seed: Annotated[int, typer.Option(help="Of the arrival times; prompts are new in every run.")] = 0,
    plot: Plots = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Load an OpenAI server, ours or another's: TTFT, TPOT, gaps, throughput and goodput.

    Streams /v1/completions, greedy. Prompts are random token ids of exact length, so that no prefix cache helps; with
    words (--chat, --text) a length is only about right. Ctrl-C ends the load and prints what there is. The exit status
    is 1 when a request failed.

    \b
    Examples:
      trimaran bench serve --concurrency 32 --requests 128 --ignore-eos
      trimaran bench serve --rate 4 --goodput "ttft:100 tpot:20"
      trimaran bench serve --trace AzureLLMInferenceTrace_conv.csv --time-scale 2 --requests 500
      trimaran bench serve --url https://llm.example.org --model m --text --rate 1 --json
    """
    import uvloop
    from rich.console import Console

    from trimaran.bench.arrivals import Job, poisson, read_trace
    from trimaran.bench.load import Target, load
    from trimaran.bench.pictures import load_plot
    from trimaran.bench.plot import check_plots
    from trimaran.bench.serving import Figures, parse_goals

    if rate is not None and concurrency is not None:
        raise typer.BadParameter("--rate (open loop) and --concurrency (closed loop) exclude each other")
    check_plots(plot or ())
    goals = parse_goals(goodput)
    jobs = read_trace(trace, requests, time_scale) if trace else [Job(prompt_tokens, output_tokens)] * requests
    lengths = f"lengths of {trace.name}" if trace else f"{prompt_tokens} tokens in, up to {output_tokens} out"
    if rate is not None:
        jobs, arrivals = poisson(jobs, rate, seed), f"Poisson, {rate:g} requests/s"
    elif trace and concurrency is None:
        arrivals = f"times of the trace x {time_scale:g}"
    else:
        concurrency = concurrency or 1
        arrivals = f"{concurrency} at a time"
    target = Target(url, model, api_key, chat, text, ignore_eos, vocab, timeout)
    with Console(stderr=True).status("starting") as status:
        loaded = uvloop.run(load(target, jobs, concurrency, warm_up, lambda text: status.update(text)))
    figures = Figures(loaded, goals, f"{len(jobs)} requests, {arrivals}, {lengths}")
    show(figures, as_json, plot, lambda: load_plot(figures.to_json()))
    if loaded.interrupted:
        raise typer.Exit(130)
    if any(timing.error for timing in loaded.timings):
        raise typer.Exit(1)


def _measure(
    cases: "list[Case]",
    model: str,
    weight_format: Weights,
    kv_cache_dtype: Pages,
    threads: int,
    overlap: bool,
    rounds: int,
    peers: "Peers",
    over_http: bool,
    plot: "Sequence[Path] | None",
    as_json: bool,
) -> None:
    from rich.console import Console

    from trimaran.base.formats import KVFormat, WeightFormat
    from trimaran.bench.pictures import report_plot
    from trimaran.bench.plot import check_plots
    from trimaran.bench.run import Setup, run
    from trimaran.checkpoint.sources import resolve

    check_plots(plot or ())
    setup = Setup(
        model=resolve(model).path,
        weight_format=None if weight_format is Weights.AUTO else WeightFormat(weight_format.value),
        kv_format=None if kv_cache_dtype is Pages.AUTO else KVFormat(kv_cache_dtype.value),
        threads=threads,
        overlap=overlap,
        rounds=rounds,
        peers=peers,
        over_http=over_http,
    )
    console = Console(stderr=True)
    with console.status("starting") as status:
        report = run(setup, cases, lambda text: status.update(text))
    show(report, as_json, plot, lambda: report_plot(report))
