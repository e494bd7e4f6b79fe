"""How near each linear kernel of the native executor comes to the machine's floor, shape by shape.

    python bench/kernels.py                                   SmolLM2's shapes, usual formats and row counts
    python bench/kernels.py --formats int8 --rows 1 64        some of it
    TRIMARAN_ISA=avx2 python bench/kernels.py --threads 1     another instruction set, one thread

Each figure is the median of short passes over as many copies of a matrix as a model has layers' worth, so that weights
come from where they come from in a real step. "floor" is the larger of bytes over bandwidth and operations over peak,
both measured just before on this machine.
"""

import argparse
import os
import statistics
import time
from dataclasses import dataclass

import numpy as np

from trimaran import _native
from trimaran.base.formats import GROUP, WeightFormat
from trimaran.bench.machine import ForeignLoad, Machine, usable_cores
from trimaran.kernels.native import choose_isa

FOOTPRINT = 64 << 20  # bytes of all copies together
PASS_SECONDS = 0.15  # of measuring per figure
VOCAB = 64  # rows of the little table that inputs are read from


@dataclass(frozen=True)
class Shape:
    """A linear layer ``[n, k]`` and what it ends with."""

    name: str
    n: int
    k: int
    epilogue: str = "store"


SHAPES = [
    Shape("qkv", 960, 576),
    Shape("o", 576, 576, "add"),
    Shape("gate/up", 3072, 576, "swiglu"),
    Shape("down", 576, 1536, "add"),
    Shape("lm_head", 49152, 576, "logits"),
]


class Layers:
    """Copies of one linear layer as a program of their own."""

    def __init__(self, shape: Shape, fmt: WeightFormat, rows: int, threads: int) -> None:
        paired = shape.epilogue == "swiglu"
        head = shape.epilogue == "logits" and fmt is WeightFormat.INT8
        self.bytes = _native.matrix_bytes(fmt, shape.n, shape.k, paired, head)
        self.copies = max(1, FOOTPRINT // self.bytes)
        table = np.random.default_rng(0).standard_normal((VOCAB, shape.k), np.float32)
        core = _native.Program(
            isa=choose_isa(os.environ),
            threads=threads,
            vocab=max(VOCAB, shape.n if shape.epilogue == "logits" else 0),
            max_rows=rows,
            max_sequences=rows,
            page_size=16,
            max_positions=16,
            int8_activations=True,
            kv_format="bf16",
            weight_bytes=self.copies * self.bytes + _native.matrix_bytes("fp32", VOCAB, shape.k, False, False),
        )
        x = core.add_buffer(shape.k, False)
        out = core.add_buffer(shape.n // 2 if paired else shape.n, False)
        core.embed(x, core.add_matrix("fp32", VOCAB, shape.k, table.view(np.uint8), None, None, False, False), 1.0)
        for i in range(self.copies):
            core.linear(
                out=out,
                x=x,
                weight=core.add_matrix(fmt, shape.n, shape.k, *random_weights(fmt, shape.n, shape.k), paired, head),
                bias=-1,
                norm=-1,
                eps=0.0,
                gather=False,
                epilogue=shape.epilogue,
                residual=out if shape.epilogue == "add" else -1,
                wide=False,
                reuse=i > 0,
            )
        core.finish()
        self._core = core
        each = np.arange(rows, dtype=np.int32)
        self._inputs = (
            each % VOCAB,
            np.arange(rows + 1, dtype=np.int32),
            np.zeros(rows, np.int32),
            each,
            (),
            each,
        )

    def seconds(self) -> float:
        """Median time of one copy."""
        passes: list[float] = []
        end = time.perf_counter() + PASS_SECONDS
        while len(passes) < 3 or time.perf_counter() < end:
            start = time.perf_counter()
            self._core.begin(*self._inputs, False)
            self._core.finish_step()
            passes.append(time.perf_counter() - start)
        return statistics.median(passes[1:]) / self.copies


Terms = np.ndarray[tuple[int, int], np.dtype[np.uint16]] | None


def random_weights(fmt: WeightFormat, n: int, k: int) -> tuple[np.ndarray, Terms, Terms]:
    """Canonical arrays of a matrix; the integers are random, the scales all alike."""
    rng = np.random.default_rng(n + k)
    if not fmt.quantised:
        values = rng.standard_normal((n, k), np.float32)
        bits = values if fmt is WeightFormat.FP32 else (values.view(np.uint32) >> 16).astype(np.uint16)
        return bits.view(np.uint8), None, None
    data = rng.integers(0, 256, (n, k if fmt is WeightFormat.INT8 else k // 2), np.uint8)
    scale = np.full((n, k // GROUP), np.float16(0.01)).view(np.uint16)
    return data, scale, scale if fmt is WeightFormat.INT4Z else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", nargs="+", type=WeightFormat, default=["int4z", "int8", "bf16"], metavar="FORMAT")
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 4, 8, 16, 32, 64, 256], metavar="ROWS")
    parser.add_argument("--threads", type=int, default=usable_cores())
    options = parser.parse_args()
    machine = Machine(options.threads)
    print(f"{choose_isa(os.environ)}, {options.threads} threads, {machine.describe()}")
    print(f"{'layer':9}{'format':7}{'rows':>5}{'us':>10}{'GB/s':>8}{'GOP/s':>8}{'of floor':>10}{'foreign cores':>15}")
    for shape in SHAPES:
        for fmt in map(WeightFormat, options.formats):
            for rows in options.rows:
                layers = Layers(shape, fmt, rows, options.threads)
                with ForeignLoad() as foreign:
                    seconds = layers.seconds()
                ops = 2 * shape.n * shape.k * rows
                bandwidth = machine.bandwidth(layers.bytes * layers.copies)
                floor = max(layers.bytes / bandwidth, ops / machine.peak(int8=fmt.quantised))
                print(
                    f"{shape.name:9}{fmt:7}{rows:5}{seconds * 1e6:10.1f}{layers.bytes / seconds / 1e9:8.1f}"
                    f"{ops / seconds / 1e9:8.0f}{floor / seconds:10.0%}{foreign.cores:15.2f}"
                )


if __name__ == "__main__":
    main()
