"""Speed of latent attention: random weights in the shape of DeepSeek-V3, V3.2 or Kimi-K2 with few layers and experts.

    python bench/latent.py kimi-k2 --contexts 1 4096 --rows 1

Runs steps of ``--rows`` rows behind so many cached tokens, and prints milliseconds a step; ``--profile`` prints the
table of ``TRIMARAN_PROFILE`` with each op's share of its floor. Weights are int4 in the layers, pages int8 by default.
"""

import argparse
import os
import time
from dataclasses import dataclass

import numpy as np

from trimaran.base.formats import GROUP, KVFormat, WeightFormat
from trimaran.kernels.native import NativeExecutor
from trimaran.kernels.program import Program, RopeSpec, WeightSpec
from trimaran.kernels.step import ExecutorOptions, StepInputs
from trimaran.kernels.weights import Weight
from trimaran.models.config import ExpertsConfig, IndexerConfig, LatentConfig, ModelConfig
from trimaran.models.registry import build_program

DEEPSEEK = LatentConfig(q_rank=1536, rank=512, nope=128, value=128)


@dataclass(frozen=True)
class Shape:
    """Widths as published; ``index_heads`` 0: attention reads all tokens."""

    heads: int
    index_heads: int = 0
    hidden: int = 7168
    latent: LatentConfig = DEEPSEEK
    rope: int = 64
    expert: int = 2048


SHAPES = {
    "kimi-k2": Shape(64),
    "deepseek-v3": Shape(128),
    "deepseek-v3.2": Shape(128, index_heads=64),
    "tiny": Shape(4, index_heads=4, hidden=64, latent=LatentConfig(32, 64, 32, 48), rope=16, expert=32),
}
PAGE = 32


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--experts", type=int, default=8, help="of a layer; 8 of them are used")
    parser.add_argument("--contexts", type=int, nargs="+", default=[1, 4096])
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--kv-format", type=KVFormat, choices=list(KVFormat), default=KVFormat.INT8)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--profile", action="store_true")
    asked = parser.parse_args(arguments)
    if asked.profile:
        os.environ["TRIMARAN_PROFILE"] = "1"
    longest = max(asked.contexts) + asked.rows
    program = build_program(config(SHAPES[asked.shape], asked.layers, asked.experts, longest))
    pages = -(-longest // PAGE)
    options = ExecutorOptions(
        kv_format=asked.kv_format,
        num_pages=pages + 1,
        page_size=PAGE,
        max_rows=asked.rows,
        max_sequences=1,
        threads=asked.threads,
    )
    executor = NativeExecutor(program, random_weights(program), options)
    table = np.arange(1, pages + 1, dtype=np.int32)[None]
    for context in asked.contexts:
        step = StepInputs(
            tokens=np.zeros(asked.rows, np.int32),
            starts=np.array([0, asked.rows], np.int32),
            contexts=np.array([context], np.int32),
            slots=np.zeros(1, np.int32),
            page_tables=(table,),
            logits_rows=np.array([asked.rows - 1], np.int32),
            want_logits=False,
        )
        times = []
        for _ in range(asked.steps + 1):
            begin = time.perf_counter()
            executor.run(step)
            times.append(time.perf_counter() - begin)
        print(f"context {context}, {asked.rows} rows: {np.median(times[1:]) * 1e3:.2f} ms a step", flush=True)
    executor.close()


def config(shape: Shape, layers: int, experts: int, context: int) -> ModelConfig:
    """The model's published sizes, with fewer layers and experts and a small vocabulary."""
    every = frozenset(range(layers))
    return ModelConfig(
        family="deepseek_v32" if shape.index_heads else "deepseek_v3",
        vocab=2048,
        hidden=shape.hidden,
        intermediate=1,  # no layer is dense
        layers=layers,
        heads=shape.heads,
        kv_heads=shape.heads,
        head_dim=shape.latent.nope + shape.rope,
        norm_eps=1e-6,
        rope=RopeSpec(10000.0, shape.rope),
        context=context,
        tied=False,
        attention_bias=False,
        bos_id=None,
        eos_ids=frozenset(),
        experts=ExpertsConfig(
            experts, 8, shape.expert, shape.expert, frozenset(), "sigmoid", epsilon=1e-20, factor=2.5
        ),
        latent=shape.latent,
        indexer=IndexerConfig(shape.index_heads, 128, 2048, every, interleaved=False) if shape.index_heads else None,
    )


def random_weights(program: Program) -> dict[str, Weight]:
    """int4 matrices of random bytes, those that must be finer in the format that they must have, norms of 1."""
    rng = np.random.default_rng(0)
    return {name: _random(spec, rng) for name, spec in program.weights.items()}


def _random(spec: WeightSpec, rng: np.random.Generator) -> Weight:
    if not spec.matrix:
        return Weight(spec.name, WeightFormat.FP32, spec.shape, np.ones(spec.shape, np.float32))
    rows, cols = spec.shape
    match spec.least:
        case WeightFormat.FP32:
            values = rng.standard_normal(spec.shape, np.float32) / np.float32(cols**0.5)
            return Weight(spec.name, WeightFormat.FP32, spec.shape, values)
        case WeightFormat.BF16:
            halves = (rng.standard_normal(spec.shape, np.float32).view(np.uint32) >> 16).astype(np.uint16)
            return Weight(spec.name, WeightFormat.BF16, spec.shape, halves)
        case _:
            data = rng.integers(0, 256, (rows, cols // 2), np.uint8)
            scale = np.full((rows, cols // GROUP), cols**-0.5 / 4.6, np.float16)
            return Weight(spec.name, WeightFormat.INT4, spec.shape, data, scale)


if __name__ == "__main__":
    main()
