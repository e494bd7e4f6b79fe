"""How fast an executor gives pages to another, for every pair of page formats, and what share of prefill that is.

    python bench/handoff.py smollm2
    python bench/handoff.py smollm2 --check      exit status 1 when a share of prefill is above 5 %

A prompt's pages go from an executor with pages of one format to one with pages of another (``kernels/handoff.py``):
exported, converted, imported. MB are the target's; GB/s are bytes read from the source's pages and written to the
target's, over the time. The last column is the time as a share of computing the prompt with int8 weights and bf16
pages. The first line copies the bytes of bf16 pages once, by one thread.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from trimaran.base.errors import TrimaranError
from trimaran.base.formats import KVFormat, WeightFormat
from trimaran.checkpoint import open_checkpoint
from trimaran.checkpoint.sources import resolve
from trimaran.kernels.handoff import hand_over, pages_read
from trimaran.kernels.open import open_executor
from trimaran.kernels.step import Executor, ExecutorOptions, Int32, StepInputs
from trimaran.models.load import load_weights
from trimaran.models.registry import build_program, read_config

PAGE, ROWS, ROUNDS = 16, 512, 3
BAR = 0.05  # of prefill


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="catalogue name or path of a model")
    parser.add_argument("--tokens", type=int, default=2048, help="length of the prompt")
    parser.add_argument("--threads", type=int, default=0, help="of each executor; 0: one per core")
    parser.add_argument("--check", action="store_true", help=f"exit status 1 when a share is above {BAR:.0%}")
    arguments = parser.parse_args(argv)
    with open_checkpoint(resolve(arguments.model).path) as checkpoint:
        model = read_config(checkpoint)
        program = build_program(model)
        weights = load_weights(checkpoint, model, program, WeightFormat.INT8)
    pages = -(-arguments.tokens // PAGE)

    def executor(fmt: KVFormat) -> Executor:
        options = ExecutorOptions(fmt, num_pages=pages + 1, page_size=PAGE, max_rows=ROWS, threads=arguments.threads)
        return open_executor("native", program, weights, options)

    executors = {fmt: executor(fmt) for fmt in KVFormat if not fmt.static}  # those want scales
    table = np.arange(1, pages + 1, dtype=np.int32)[None]
    tables = (table,) * len(program.groups)
    wide = executors[KVFormat.BF16]
    seconds = best(lambda: prefill(wide, tables, arguments.tokens, program.vocab), 2)
    moved = pages_read(wide.layout, tables, 0, arguments.tokens)
    size = bytes_of(wide, moved)
    block, other = np.ones(size, np.uint8), np.empty(size, np.uint8)
    copying = best(lambda: np.copyto(other, block), ROUNDS)
    print(f"prefill of {arguments.tokens:,} tokens: {1e3 * seconds:,.0f} ms")
    print("from        to               MB        ms    GB/s  of prefill")
    line = "{:12}{:12}{:8.1f}{:10.2f}{:8.2f}{:12.2%}"
    print(line.format("memcpy", "", size / 1e6, 1e3 * copying, 2 * size / copying / 1e9, copying / seconds))
    late = False
    for source in executors.values():
        hand_over(wide, moved, source, moved)  # the same tokens in every format
        for target in executors.values():
            moving = best(partial(hand_over, source, moved, target, moved), ROUNDS)
            size = bytes_of(target, moved)
            speed, share = (bytes_of(source, moved) + size) / moving / 1e9, moving / seconds
            late = late or share > BAR
            formats = source.layout.page_format, target.layout.page_format
            print(line.format(*formats, size / 1e6, 1e3 * moving, speed, share), flush=True)
    return 1 if late and arguments.check else 0


def bytes_of(executor: Executor, moved: Sequence[Int32]) -> int:
    """Bytes of those pages of each group."""
    return sum(len(pages) * executor.layout.page_bytes(group) for group, pages in enumerate(moved))


def prefill(executor: Executor, tables: tuple[Int32, ...], tokens: int, vocab: int) -> None:
    """Computes a prompt of random tokens, ``ROWS`` a step."""
    prompt = np.random.default_rng(0).integers(0, vocab, tokens).astype(np.int32)
    zero = np.zeros(1, np.int32)
    for first in range(0, tokens, ROWS):
        rows = min(ROWS, tokens - first)
        starts, contexts = np.array([0, rows], np.int32), np.array([first], np.int32)
        last = np.array([rows - 1], np.int32)
        executor.run(StepInputs(prompt[first : first + rows], starts, contexts, zero, tables, last, want_logits=False))


def best(work: Callable[[], object], rounds: int) -> float:
    """Seconds of the quickest of some rounds."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TrimaranError as error:
        sys.exit(f"handoff: {error}")
