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
from trimaran.base.formats import FP8_BLOCK, GROUP, WeightFormat
from trimaran.bench.machine import ForeignLoad, Machine, usable_cores
from trimaran.kernels.native import choose_isa
from trimaran.kernels.native_weights import canonical_arrays
from trimaran.kernels.weights import Outliers, Weight

FOOTPRINT = 64 << 20  # bytes of all copies together
PASS_SECONDS = 0.15  # of measuring per figure
OUTLIERS = 0.0045  # of all numbers, as SqueezeLLM has them
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
        weight = random_weight(fmt, shape.n, shape.k)
        self.bytes = _native.matrix_bytes(fmt, shape.n, shape.k, paired, head)
        if weight.outliers is not None:
            self.bytes += _native.outlier_bytes(1, shape.n, paired, weight.outliers.starts)
        self.copies = max(1, FOOTPRINT // self.bytes)
        table = np.random.default_rng(0).standard_normal((VOCAB, shape.k), np.float32)
        result = max(VOCAB, shape.n if shape.epilogue == "logits" else 0)
        core = _native.Program(
            isa=choose_isa(os.environ),
            threads=threads,
            vocab=result,
            result=result,
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
        inputs = Weight("inputs", WeightFormat.FP32, table.shape, table)
        core.embed(x, core.add_matrix(canonical_arrays(inputs), False, False), 1.0, "token")
        for i in range(self.copies):
            core.linear(
                out=out,
                x=x,
                weight=core.add_matrix(canonical_arrays(weight), paired, head),
                bias=-1,
                norm=-1,
                eps=0.0,
                gather=False,
                epilogue=shape.epilogue,
                residual=out if shape.epilogue == "add" else -1,
                gather_residual=False,
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
            np.zeros(0, np.uint64),
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


def random_weight(fmt: WeightFormat, n: int, k: int) -> Weight:
    """A matrix of random codes whose scales are all alike; codebooks have ``OUTLIERS`` of its numbers beside them."""
    rng = np.random.default_rng(n + k)
    if not fmt.quantised:
        values = rng.standard_normal((n, k), np.float32)
        bits = values if fmt is WeightFormat.FP32 else (values.view(np.uint32) >> 16).astype(np.uint16)
        return Weight("w", fmt, (n, k), bits)
    if fmt is WeightFormat.FP8:
        codes = rng.integers(0, 127, (n, k), np.uint8)
        return Weight("w", fmt, (n, k), codes, np.full((n, -(-k // FP8_BLOCK)), 0.01, np.float32))
    data = rng.integers(0, 256, (n, k if fmt is WeightFormat.INT8 else k // 2), np.uint8)
    if fmt.levels:
        codebook = np.sort(rng.integers(-127, 128, (n, fmt.levels)).astype(np.int8), axis=1)
        return Weight(
            "w", fmt, (n, k), data & _CODES[fmt], np.full(n, 0.01, np.float16), None, codebook, outliers(n, k)
        )
    scale = np.full((n, k // GROUP), 0.01, np.float16)
    return Weight("w", fmt, (n, k), data, scale, scale if fmt is WeightFormat.INT4Z else None)


_CODES = {WeightFormat.CODEBOOK4: np.uint8(0xFF), WeightFormat.CODEBOOK3: np.uint8(0x77)}


def outliers(n: int, k: int) -> Outliers:
    each = round(OUTLIERS * k)
    columns = np.tile(np.linspace(0, k - 1, each).astype(np.int32), n)
    return Outliers(np.arange(0, n * each + 1, each, dtype=np.int32), columns, np.full(n * each, 0.5, np.float16))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--formats",
        nargs="+",
        type=WeightFormat,
        default=["int4z", "int8", "bf16", "fp8", "codebook4", "codebook3"],
        metavar="FORMAT",
    )
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 4, 8, 16, 32, 64, 256], metavar="ROWS")
    parser.add_argument("--threads", type=int, default=usable_cores())
    options = parser.parse_args()
    machine = Machine(options.threads)
    print(f"{choose_isa(os.environ)}, {options.threads} threads, {machine.describe()}")
    print(f"{'layer':9}{'format':10}{'rows':>5}{'us':>10}{'GB/s':>8}{'GOP/s':>8}{'of floor':>10}{'foreign cores':>15}")
    for shape in SHAPES:
        for fmt in map(WeightFormat, options.formats):
            for rows in options.rows:
                layers = Layers(shape, fmt, rows, options.threads)
                with ForeignLoad() as foreign:
                    seconds = layers.seconds()
                ops = 2 * shape.n * shape.k * rows
                bandwidth = machine.bandwidth(layers.bytes * layers.copies)
                floor = max(layers.bytes / bandwidth, ops / machine.peak(int8=fmt.integer))
                print(
                    f"{shape.name:9}{fmt:10}{rows:5}{seconds * 1e6:10.1f}{layers.bytes / seconds / 1e9:8.1f}"
                    f"{ops / seconds / 1e9:8.0f}{floor / seconds:10.0%}{foreign.cores:15.2f}"
                )


if __name__ == "__main__":
    main()
