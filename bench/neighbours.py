"""What is left of our speed when other jobs take the same cores.

    python bench/neighbours.py smollm2

Measures prefill and decode with 0, 1, ... busy processes, each pinned to a core of its own, up to one for every thread.
They do nothing but compute, at the same priority as we do, so with all cores taken half the speed is a fair share.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import harmonic_mean

from trimaran.base.errors import TrimaranError
from trimaran.bench.bare import BareExecutor
from trimaran.bench.cases import CHUNK, Case, Decode, Prefill, cache_need
from trimaran.bench.machine import usable_cores
from trimaran.checkpoint import open_checkpoint
from trimaran.checkpoint.sources import resolve
from trimaran.kernels.open import open_executor
from trimaran.kernels.step import ExecutorOptions
from trimaran.models.load import load_weights
from trimaran.models.registry import build_program, read_config

PAGE = 16
CASES: tuple[Case, ...] = (Prefill(512), Decode(128, 256), Decode(128, 32, 32))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="catalogue name or path")
    parser.add_argument("--threads", type=int, default=0, help="0: one per core")
    parser.add_argument("--rounds", type=int, default=7, help="repeats of each case")
    options = parser.parse_args(arguments)
    threads = options.threads or usable_cores()
    subject = open_subject(options.model, threads)
    print(f"{threads} threads; tokens/s over {options.rounds} rounds, and the share of the quiet figure\n")
    print(f"{'busy processes':<24}" + "".join(f"{case.name:>24}" for case in CASES))
    quiet: list[float] = []
    for jobs in range(threads + 1):
        with busy(jobs):
            speeds = [measure(subject, case, options.rounds) for case in CASES]
        quiet = quiet or speeds
        cells = [f"{speed:,.0f} ({speed / alone:.0%})" for speed, alone in zip(speeds, quiet, strict=True)]
        print(f"{jobs:<24}" + "".join(f"{cell:>24}" for cell in cells), flush=True)
    subject.close()
    return 0


def open_subject(model: str, threads: int) -> BareExecutor:
    """The model on the native executor, as its file holds it, with pages for every case."""
    needs = [cache_need(case) for case in CASES]
    options = ExecutorOptions(
        num_pages=1 + max(sequences * -(-tokens // PAGE) for tokens, sequences in needs),
        page_size=PAGE,
        max_rows=CHUNK,
        max_sequences=max(sequences for _, sequences in needs),
        threads=threads,
    )
    with open_checkpoint(resolve(model).path) as checkpoint:
        config = read_config(checkpoint)
        program = build_program(config)
        weights = load_weights(checkpoint, config, program, None)
        return BareExecutor(open_executor("native", program, weights, options), program.vocab)


def measure(subject: BareExecutor, case: Case, rounds: int) -> float:
    """Tokens over time of all rounds together: what is lost in a bad moment is not hidden by a median."""
    speeds = [speed for _ in range(rounds) if (speed := subject.measure(case)) is not None]
    return harmonic_mean(speeds)


@contextmanager
def busy(jobs: int) -> Iterator[None]:
    """``jobs`` processes that compute for as long as the ``with`` lasts, each pinned to one of our last cores."""
    cores = sorted(os.sched_getaffinity(0))[-jobs:] if jobs else []
    code = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"
    processes = [subprocess.Popen([sys.executable, "-c", code, str(core)]) for core in cores]
    try:
        time.sleep(0.5 if jobs else 0)  # until they run
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TrimaranError as error:
        sys.exit(f"neighbours: {error}")
