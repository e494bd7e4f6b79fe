"""A tiny random Llama and steps over it, for tests of executors."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trimaran.base.formats import WeightFormat
from trimaran.kernels.program import Program, RopeSpec
from trimaran.kernels.step import StepInputs
from trimaran.kernels.weights import Weight
from trimaran.models.config import ModelConfig
from trimaran.models.registry import build_program
from trimaran.quant.convert import quantise

CONFIG = ModelConfig(
    family="llama",
    vocab=80,
    hidden=64,
    intermediate=96,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=16,
    norm_eps=1e-5,
    rope=RopeSpec(theta=1000.0, dims=16),
    context=160,
    tied=False,
    attention_bias=True,
    bos_id=None,
    eos_ids=frozenset(),
)
MAX_PAGES = 10  # of a sequence: CONFIG.context / 16


def program(cfg: ModelConfig = CONFIG) -> Program:
    return build_program(cfg)


def random_weights(program: Program, fmt: WeightFormat = WeightFormat.FP32, seed: int = 0) -> dict[str, Weight]:
    """Normal matrices in ``fmt``, fp32 vectors; scaled so that every layer matters."""
    rng = np.random.default_rng(seed)
    weights = {}
    for spec in program.weights.values():
        if spec.matrix:
            values = rng.standard_normal(spec.shape, np.float32) * np.float32(2 * spec.shape[1] ** -0.5)
            weights[spec.name] = quantise(spec.name, values, fmt)
        else:
            values = rng.uniform(0.5, 1.5, spec.shape).astype(np.float32)
            weights[spec.name] = Weight(spec.name, WeightFormat.FP32, spec.shape, values)
    return weights


def random_tokens(count: int, seed: int = 1) -> list[int]:
    return np.random.default_rng(seed).integers(0, CONFIG.vocab, count).tolist()


@dataclass(frozen=True)
class Rows:
    """Rows of one sequence in a step: ``tokens`` from position ``context``, cache in ``pages``."""

    tokens: Sequence[int]
    context: int
    pages: Sequence[int]


def step(*sequences: Rows, logits_rows: Sequence[int] | None = None, want_logits: bool = True) -> StepInputs:
    """A step of ``sequences`` in slots of falling number; logits of every row unless ``logits_rows`` says which."""
    lengths = [len(rows.tokens) for rows in sequences]
    slots = list(range(len(sequences) + 1, 1, -1))
    table = np.zeros((len(sequences) + 2, MAX_PAGES), np.int32)
    for slot, rows in zip(slots, sequences, strict=True):
        table[slot, : len(rows.pages)] = rows.pages
    wanted = range(sum(lengths)) if logits_rows is None else logits_rows
    return StepInputs(
        tokens=np.array([token for rows in sequences for token in rows.tokens], np.int32),
        starts=np.cumsum([0, *lengths], dtype=np.int32),
        contexts=np.array([rows.context for rows in sequences], np.int32),
        slots=np.array(slots, np.int32),
        page_tables=(table,),
        logits_rows=np.array(wanted, np.int32),
        want_logits=want_logits,
    )
