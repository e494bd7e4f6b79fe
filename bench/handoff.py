"""How fast an executor gives pages to another, for every pair of page formats, and what share of prefill that is.

    python bench/handoff.py smollm2
    python bench/handoff.py smollm2 --check      exit status 1 when a share of prefill is above 5 %

A prompt's pages are exported from an executor with pages of one format, converted, and imported by one of another. MB
are those of the target; GB/s are bytes that export reads and import writes, over the time of both. The last column is
that time as a share of computing the prompt with int8 weights and bf16 pages. The first line copies the bytes of
bf16 pages twice, by one thread, which is what export and import without conversion do by all.
"""

import argparse
import sys
import time
from collections.abc import Callable

import numpy as np

from trimaran.base.errors import TrimaranError
from trimaran.base.formats import KVFormat, WeightFormat
from trimaran.checkpoint import open_checkpoint
from trimaran.checkpoint.sources import resolve
from trimaran.kernels.handoff import pages_read
from trimaran.kernels.open import open_executor
from trimaran.kernels.step import Executor, ExecutorOptions, Int32, StepInputs
from trimaran.models.load import load_weights
from trimaran.models.registry import build_program, read_config

PAGE, ROWS, ROUNDS = 16, 512, 3
BAR = 0.05  # of prefill


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="catalogue name or path of a model")
    parser.add_argument("--tokens", type=int, default=2048, help="length of the prompt")
    parser.add_argument("--threads", type=int, default=0, help="of each executor; 0: one per core")
    parser.add_argument("--check", action="store_true", help=f"exit status 1 when a share is above {BAR:.0%}")
    arguments = parser.parse_args()
    with open_checkpoint(resolve(arguments.model).path) as checkpoint:
        model = read_config(checkpoint)
        program = build_program(model)
        weights = load_weights(checkpoint, model, program, WeightFormat.INT8)
    pages = -(-arguments.tokens // PAGE)

    def executor(fmt: KVFormat) -> Executor:
        options = ExecutorOptions(fmt, num_pages=pages + 1, page_size=PAGE, max_rows=ROWS, threads=arguments.threads)
        return open_executor("native", program, weights, options)

    executors = {fmt: executor(fmt) for fmt in KVFormat}
    table = np.arange(1, pages + 1, dtype=np.int32)[None]
    tables = (table,) * len(program.groups)
    wide = executors[KVFormat.BF16]
    seconds = best(lambda: prefill(wide, tables, arguments.tokens, program.vocab), 2)
    moved = list(enumerate(pages_read(wide.layout, tables, 0, arguments.tokens)))
    size = sum(len(numbers) * wide.layout.page_bytes(group) for group, numbers in moved)
    block, other = np.ones(size, np.uint8), np.empty(size, np.uint8)
    copying = 2 * best(lambda: np.copyto(other, block), ROUNDS)
    print(f"prefill of {arguments.tokens:,} tokens: {1e3 * seconds:,.0f} ms")
    print("from        to               MB  export ms  import ms    GB/s  of prefill")
    print(f"{'memcpy':24}{size / 1e6:8.1f}{'':22}{2 * size / copying / 1e9:8.2f}{copying / seconds:12.2%}")
    late = False
    for source in executors.values():
        for group, numbers in moved:  # the same tokens in every format
            source.import_pages(group, numbers, wide.export_pages(group, numbers, source.layout.page_format))
        for target in executors.values():
            exporting, importing, size = hand_over_once(source, target, moved)
            for _ in range(ROUNDS - 1):
                again = hand_over_once(source, target, moved)
                exporting, importing = min(exporting, again[0]), min(importing, again[1])
            read = sum(len(numbers) * source.layout.page_bytes(group) for group, numbers in moved)
            share = (exporting + importing) / seconds
            late = late or share > BAR
            print(
                f"{source.layout.page_format:12}{target.layout.page_format:12}{size / 1e6:8.1f}"
                f"{1e3 * exporting:11.2f}{1e3 * importing:11.2f}"
                f"{(read + size) / (exporting + importing) / 1e9:8.2f}{share:12.2%}",
                flush=True,
            )
    return 1 if late and arguments.check else 0


def hand_over_once(source: Executor, target: Executor, moved: list[tuple[int, Int32]]) -> tuple[float, float, int]:
    """Seconds of export and of import of pages that have the same numbers on both sides, and the target's bytes."""
    start = time.perf_counter()
    data = [source.export_pages(group, numbers, target.layout.page_format) for group, numbers in moved]
    between = time.perf_counter()
    for (group, numbers), pages in zip(moved, data, strict=True):
        target.import_pages(group, numbers, pages)
    end = time.perf_counter()
    return between - start, end - between, sum(pages.nbytes for pages in data)


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
