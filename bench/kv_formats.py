"""What each KV page format costs in exactness and takes in memory, against bf16 pages of the same weights.

    python bench/kv_formats.py smollm2           all formats, over the three golden texts
    python bench/kv_formats.py smollm2 --check   exit status 1 when a bar is missed
    python bench/kv_formats.py smollm2 --speed   how fast each decodes instead, formats in turn within every round

KL is KL(bf16 pages || format) in nats over the whole vocabulary, and top-1 how often both have the same arg-max; texts
count the same. Activations are fp32, so that pages alone differ. Bytes are of a token in all layers.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from trimaran.base.errors import TrimaranError
from trimaran.base.formats import ActivationFormat, KVFormat
from trimaran.bench.goldens import load_goldens
from trimaran.bench.parity import CHUNK, forward
from trimaran.calibration.kv_ranges import Ranges, measure_ranges
from trimaran.checkpoint import open_checkpoint
from trimaran.checkpoint.sources import resolve
from trimaran.evaluate.measures import Bool, Float32, Float64, divergence, log_softmax, same_top
from trimaran.kernels.open import open_executor
from trimaran.kernels.program import Program
from trimaran.kernels.step import Executor, ExecutorOptions, StepInputs
from trimaran.kernels.weights import Weight
from trimaran.kvcache import default_text
from trimaran.models.load import load_weights
from trimaran.models.registry import build_program, read_config
from trimaran.text.tokenizer import open_tokenizer

GOLDENS = Path(__file__).resolve().parent.parent / "tests" / "data" / "goldens"
PAGE = 16
MEMORY = 400 * 2**20  # bytes that "resident" fills
BARS = {  # most mean KL
    KVFormat.INT8: 0.004,
    KVFormat.INT8_STATIC: 0.01,
    KVFormat.FP8: 0.018,
    KVFormat.FP8_STATIC: 0.03,
    KVFormat.INT8_INT4: 0.03,
    KVFormat.INT4: 0.13,
}
FORMATS = (KVFormat.BF16, *BARS)
SPEEDS = ((1, 2048), (32, 512))  # sequences, tokens that each has
ROUNDS, STEPS = 5, 8


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="catalogue name or path of SmolLM2-135M-Instruct, which the texts belong to")
    parser.add_argument("--executor", default="native", choices=("native", "reference"))
    parser.add_argument("--tokens", type=int, default=None, help="use only the start of each text")
    parser.add_argument("--check", action="store_true", help="exit with status 1 when a bar is missed")
    parser.add_argument("--speed", action="store_true", help="decode tokens/s instead of exactness")
    arguments = parser.parse_args()
    texts = [golden.tokens[: arguments.tokens].tolist() for golden in load_goldens(GOLDENS, "smollm2")]
    checkpoint = open_checkpoint(resolve(arguments.model).path)
    model = read_config(checkpoint)
    program = build_program(model)
    weights = load_weights(checkpoint, model, program, None)
    ranges = measure_ranges(checkpoint, [open_tokenizer(checkpoint).encode(default_text())])  # of none of the texts

    def executor(fmt: KVFormat) -> Executor:
        pages = 1 + max(-(-len(text) // PAGE) for text in texts)
        options = ExecutorOptions(
            kv_format=fmt,
            kv_scales=ranges.scales(fmt, program),
            activations=ActivationFormat.FP32,
            num_pages=pages,
            page_size=PAGE,
            max_rows=CHUNK,
        )
        return open_executor(arguments.executor, program, weights, options)

    if arguments.speed:
        measure_speed(program, weights, ranges)
        return 0
    print("pages       bytes/token  resident  of bf16   mean KL    top-1")
    missed = False
    wide = sum(group.page_bytes(KVFormat.BF16, PAGE) for group in program.groups)
    for fmt in FORMATS:
        kl, agreement = (0.0, 1.0) if fmt is KVFormat.BF16 else compare(executor(KVFormat.BF16), executor(fmt), texts)
        page = sum(group.page_bytes(fmt, PAGE) for group in program.groups)
        late = kl > BARS.get(fmt, 0.0)
        missed = missed or late
        print(
            f"{fmt:12}{page // PAGE:11,}{MEMORY // page * PAGE:10,}{wide / page:9.2f}{kl:10.4f}{agreement:9.2%}"
            + (f"   MISSED: {BARS[fmt]}" if late else ""),
            flush=True,
        )
    checkpoint.close()
    return 1 if missed and arguments.check else 0


def measure_speed(program: Program, weights: Mapping[str, Weight], ranges: Ranges) -> None:
    """Prints the best tokens/s of decode steps behind contexts that nobody filled: what pages hold costs no time."""
    print("pages       " + "".join(f"{f'{sequences} x {depth:,}':>12}" for sequences, depth in SPEEDS))
    best = {fmt: [0.0] * len(SPEEDS) for fmt in FORMATS}
    for column, (sequences, depth) in enumerate(SPEEDS):
        pages = -(-depth // PAGE)
        step = StepInputs(
            tokens=np.arange(sequences, dtype=np.int32),
            starts=np.arange(sequences + 1, dtype=np.int32),
            contexts=np.full(sequences, depth - 1, np.int32),
            slots=np.arange(sequences, dtype=np.int32),
            page_tables=(1 + np.arange(sequences * pages, dtype=np.int32).reshape(sequences, pages),),
            logits_rows=np.arange(sequences, dtype=np.int32),
            want_logits=False,
        )
        options = ExecutorOptions(num_pages=1 + sequences * pages, max_rows=sequences, max_sequences=sequences)
        executors = {
            fmt: open_executor(
                "native", program, weights, replace(options, kv_format=fmt, kv_scales=ranges.scales(fmt, program))
            )
            for fmt in FORMATS
        }
        for _ in range(ROUNDS):
            for fmt, executor in executors.items():
                executor.run(step)
                start = time.perf_counter()
                for _ in range(STEPS):
                    executor.run(step)
                seconds = time.perf_counter() - start
                best[fmt][column] = max(best[fmt][column], STEPS * sequences / seconds)
        for executor in executors.values():
            executor.close()
    for fmt, figures in best.items():
        print(f"{fmt:12}" + "".join(f"{figure:12,.1f}" for figure in figures))


def compare(ours: Executor, theirs: Executor, texts: list[list[int]]) -> tuple[float, float]:
    """Mean KL(ours || theirs) and top-1 agreement; closes both."""
    distances, agreements = [], []
    for text in texts:
        kl, same = zip(*(_distances(a, b) for a, b in _together(ours, theirs, text)), strict=True)
        distances.append(np.concatenate(kl).mean())
        agreements.append(np.concatenate(same).mean())
    ours.close()
    theirs.close()
    return float(np.mean(distances)), float(np.mean(agreements))


def _together(ours: Executor, theirs: Executor, text: list[int]) -> Iterator[tuple[Float32, Float32]]:
    return zip(forward(ours, text), forward(theirs, text), strict=True)


def _distances(ours: Float32, theirs: Float32) -> tuple[Float64, Bool]:
    """KL of each row, and whether the arg-max is the same."""
    return divergence(log_softmax(ours), log_softmax(theirs)), same_top(ours, theirs)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TrimaranError as error:
        sys.exit(f"kv_formats: {error}")
