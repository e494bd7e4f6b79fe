"""``trimaran bench kv``, ``weights`` and ``integrity``: what smaller formats and page tags do for speed, in one run."""

import json
from pathlib import Path
from typing import Annotated

import typer

from trimaran.cli import flags
from trimaran.cli.bench_flags import AsJson, Plots, Rounds, Threads, numbers, show
from trimaran.cli.flags import Pages

FORMATS, CONCURRENCY = "bf16,fp8,int8,int8/int4,int4", "1,2,4,8,16,32,64,128"
TRACE_FORMAT, TRACE_CONCURRENCY = "int8", "32"


def kv(
    model: flags.Model,
    kv_cache_memory_bytes: Annotated[
        str, typer.Option(metavar="SIZE", help="Memory for pages, the same for every format.")
    ] = "400MiB",
    formats: Annotated[
        str | None,
        typer.Option(
            help="Formats of pages, comma-separated; others are compared with bf16, or the first.",
            show_default=f"{FORMATS}; with --trace {TRACE_FORMAT}",
        ),
    ] = None,
    concurrency: Annotated[
        str | None,
        typer.Option(
            help="Requests at a time, comma-separated.",
            show_default=f"{CONCURRENCY}; with --trace {TRACE_CONCURRENCY}",
        ),
    ] = None,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")] = 384,
    output_tokens: Annotated[int, typer.Option(min=2, help="Tokens that each request gets.")] = 128,
    depth: Annotated[
        int, typer.Option(min=0, help="Also decode one sequence of so many tokens alone; 0: do not.")
    ] = 2048,
    threads: Threads = 0,
    rounds: Rounds = 1,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.jsonl",
            help="Instead: replay this trace of Mooncake's format, reading shared pages apart and together.",
            show_default=False,
        ),
    ] = None,
    scale: Annotated[float, typer.Option(min=1e-4, max=1, help="Multiplies the trace's lengths.")] = 0.0625,
    time_scale: Annotated[
        float, typer.Option(min=0, max=1e6, help="Multiplies the trace's times; 0: no waiting.")
    ] = 0.0,
    requests: Annotated[int, typer.Option(min=1, help="At most so many of the trace.")] = 64,
    shared: Annotated[
        str, typer.Option(help="With --trace, also decode sequences that have so many prompt tokens in common.")
    ] = "1024,2048,4096",
    plot: Plots = None,
    as_json: AsJson = False,
) -> None:
    """The same memory in several formats of KV pages: what fits, how fast, and what a token costs.

    At each concurrency, so many requests run at a time until at least 8 and as many as run together are done. `cost`
    is machine time a token over that of bf16 pages at the same concurrency. Where pages run out, requests wait
    (`waiting`: the most at once) or are preempted and computed again. `resident`: tokens that the memory holds.

    With --trace, which takes one format and one concurrency, engines are compared that differ in this: attention reads
    pages that several sequences share once for each of them (apart), or once for all (together). Lengths are scaled
    down so that the trace fits the model; prompts have prefixes in common where the trace's do. The exit status is 1
    when the two gave different tokens.

    \b
    Examples:
      trimaran bench kv smollm2 --kv-cache-memory-bytes 400MiB
      trimaran bench kv smollm2 --formats bf16,fp8 --concurrency 32,64 --rounds 3 --plot kv.png --plot kv.html
      trimaran bench kv smollm2 --trace mooncake_conversation.jsonl --rounds 3
    """
    from rich.console import Console

    from trimaran.base.formats import KVFormat
    from trimaran.bench.kv import run_kv
    from trimaran.bench.kv_report import KVSetup
    from trimaran.bench.pictures import kv_plot, sharing_plot
    from trimaran.bench.plot import check_plots
    from trimaran.bench.sharing import SharingSetup, run_sharing
    from trimaran.checkpoint.sources import resolve
    from trimaran.cli.sizes import parse_size

    check_plots(plot or ())
    named = _names("--formats", formats or (TRACE_FORMAT if trace else FORMATS), list(KVFormat))
    together = numbers("--concurrency", concurrency or (TRACE_CONCURRENCY if trace else CONCURRENCY))
    memory = parse_size(kv_cache_memory_bytes)
    if trace is not None:
        if len(named) > 1 or len(together) > 1:
            raise typer.BadParameter("--trace takes one of --formats and one --concurrency")
        setup_of_trace = SharingSetup(
            model=resolve(model).path,
            memory=memory,
            kv_format=KVFormat(named[0]),
            concurrency=together[0],
            trace=trace,
            scale=scale,
            time_scale=time_scale,
            requests=requests,
            shared=tuple(numbers("--shared", shared)),
            threads=threads,
            rounds=rounds,
        )
        with Console(stderr=True).status("starting") as status:
            sharing = run_sharing(setup_of_trace, lambda text: status.update(text))
        show(sharing, as_json, plot, lambda: sharing_plot(sharing))
        if not all(case.same for case in sharing.cases):
            raise typer.Exit(1)
        return
    setup = KVSetup(
        model=resolve(model).path,
        memory=memory,
        formats=tuple(dict.fromkeys(map(KVFormat, named))),
        concurrency=tuple(sorted(set(together))),
        prompt=prompt_tokens,
        output=output_tokens,
        depth=depth,
        threads=threads,
        rounds=rounds,
    )
    with Console(stderr=True).status("starting") as status:
        report = run_kv(setup, lambda text: status.update(text))
    show(report, as_json, plot, lambda: kv_plot(report))


def weights(
    model: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...",
            help="The model that --formats are made of; further ones are measured as their files are.",
            show_default=False,
        ),
    ],
    formats: Annotated[
        str,
        typer.Option(
            help="Formats of weights, comma-separated; auto: as in the file; int8/int4z: prompts in the first, the "
            "rest in the second."
        ),
    ] = "auto,int4,int8,bf16",
    sequences: Annotated[str, typer.Option(help="How many decode together, comma-separated.")] = "1,2,4,8,16,32,64",
    depth: Annotated[int, typer.Option(min=1, help="Prompt tokens of each sequence.")] = 128,
    steps: Annotated[int, typer.Option(min=1, help="Decode steps.")] = 24,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Prompt tokens of the prefill.")] = 512,
    requests: Annotated[
        int,
        typer.Option(min=0, help="Also so many requests of many lengths at once, prompts beside answers."),
    ] = 0,
    kv_cache_dtype: flags.KVCacheDtype = Pages.INT8,
    threads: Threads = 0,
    rounds: Rounds = 3,
    plot: Plots = None,
    as_json: AsJson = False,
) -> None:
    """The same model with several formats of weights: decoding few and many sequences, and prefill.

    Prints from how many sequences on one format overtakes another: small weights are read faster, which counts while
    few rows share a reading; many rows count on cheap arithmetic.

    \b
    Examples:
      trimaran bench weights smollm2
      trimaran bench weights smollm2 --formats int8,int4z,int8/int4z --sequences 1,8,32 --requests 32
      trimaran bench weights smollm2 ./smollm2-codebook4 --formats int4,int8 --sequences 1,8,64 --plot weights.png
    """
    from rich.console import Console

    from trimaran.base.formats import KVFormat, WeightFormat
    from trimaran.bench.pictures import weights_plot
    from trimaran.bench.plot import check_plots
    from trimaran.bench.weights import Candidate, run_weights, weights_cases
    from trimaran.checkpoint.sources import resolve
    from trimaran.engine.config import SAME

    check_plots(plot or ())
    first, *others = [resolve(name).path for name in model]
    candidates = []
    for name in dict.fromkeys(each.strip() for each in formats.split(",")):
        *prefill, decode = _names("--formats", name, ["auto", *WeightFormat], separator="/")
        if len(prefill) > 1:
            raise typer.BadParameter(f"--formats: {name!r} is neither a format nor two, such as int8/int4z")
        fmt = None if decode == "auto" else WeightFormat(decode)
        candidates.append(Candidate(name, first, fmt, prefill[0] if prefill else SAME))
    candidates += [Candidate(path.name, path, None) for path in others]
    if len({candidate.name for candidate in candidates}) < len(candidates):
        raise typer.BadParameter("two of the models have the same name")
    cases = weights_cases(sorted(set(numbers("--sequences", sequences))), depth, steps, prompt_tokens, requests)
    kv_format = None if kv_cache_dtype is Pages.AUTO else KVFormat(kv_cache_dtype.value)
    with Console(stderr=True).status("starting") as status:
        report = run_weights(candidates, cases, kv_format, threads, rounds, lambda text: status.update(text))
    show(report, as_json, plot, lambda: weights_plot(report))


def integrity(
    model: flags.Model,
    sequences: Annotated[str, typer.Option(help="How many decode together, comma-separated.")] = "1,32,64",
    output_tokens: Annotated[int, typer.Option(min=2, help="Tokens that each request gets.")] = 512,
    seconds: Annotated[float, typer.Option(min=1, help="Most time for each number of sequences.")] = 120.0,
    threads: Threads = 0,
    as_json: AsJson = False,
) -> None:
    """What page tags cost: throughput and p95 time between tokens with and without, and the check's share of a step.

    One engine turns its check on and off every few steps of decoding, until the 95 % intervals of both are within
    0.5 %, or the time is over, which the table says.

    \b
    Examples:
      trimaran bench integrity smollm2
      trimaran bench integrity smollm2 --sequences 64 --seconds 300
    """
    from rich.console import Console

    from trimaran.bench.integrity import run_integrity
    from trimaran.checkpoint.sources import resolve

    batches = sorted(set(numbers("--sequences", sequences)))
    with Console(stderr=True).status("starting") as status:
        report = run_integrity(
            resolve(model).path, batches, output_tokens, threads, seconds, lambda text: status.update(text)
        )
    print(json.dumps(report.to_json(), indent=2) if as_json else report.to_text())


def _names(option: str, text: str, known: list[str], separator: str = ",") -> list[str]:
    names = [name.strip() for name in text.split(separator)]
    if wrong := [name for name in names if name not in known]:
        raise typer.BadParameter(f"{option}: {wrong[0]!r} is not one of {', '.join(known)}")
    return names
