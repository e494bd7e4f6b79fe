"""Which matrices' rounding to int4 moves a model how far: mean KL over ``bench/texts`` when only some are rounded.

``python bench/rounding.py gemma3-270m`` rounds each kind by itself, then all; ``--noise 0.0018`` adds normally
distributed noise in place of rounding, of that share of the weights' squares (what 5 bits leave of normally distributed
weights, in groups of 32). Every eighth token is looked at. A float32 forward in NumPy; 3 GB of memory.
"""

import argparse
from collections.abc import Collection

import numpy as np

from trimaran.calibration.forward import Forward
from trimaran.calibration.weights import StreamedWeights
from trimaran.checkpoint import open_checkpoint
from trimaran.checkpoint.sources import resolve
from trimaran.compress.choice import why_kept
from trimaran.compress.recipe import Int4
from trimaran.compress.source import Source, read_source
from trimaran.evaluate.measures import divergence, log_softmax
from trimaran.evaluate.suite import TEXTS, TOKENS
from trimaran.kernels.program import Logits, TakeRows
from trimaran.kernels.step import Float32
from trimaran.models.registry import build_program, read_config
from trimaran.quant.stored import Stored
from trimaran.text.tokenizer import open_tokenizer

EVERY = 8
DRAWS = 3
KINDS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class Rounded(StreamedWeights):
    """The weights of a model, of ``kinds`` as int4 would have them, or with ``noise``."""

    kinds: Collection[str] = ()
    noise: float | None = None
    draw = 0

    def read(self, stored: Stored, rows: slice) -> Float32:
        values = super().read(stored, rows)
        chosen = any(f".{kind}." in stored.name for kind in self.kinds)
        if not chosen or why_kept(stored.name, stored.shape, experts_only=False):
            return values
        if self.noise is None:
            return Int4().encode(values).values
        normal = np.random.default_rng([self.draw, *stored.name.encode()]).standard_normal(values.shape, np.float32)
        return values + normal * np.float32(np.sqrt(self.noise * np.square(values).mean()))


def rows_of(
    source: Source, texts: list[list[int]], kinds: Collection[str], noise: float | None = None, draw: int = 0
) -> Float32:
    """Logits of every eighth token."""
    cfg = read_config(source.checkpoint)
    program = build_program(cfg)
    weights = Rounded(source.tensors, "safetensors", cfg, program, source.checkpoint.release)
    weights.kinds, weights.noise, weights.draw = kinds, noise, draw
    forward = Forward(program, weights, texts)
    for op in program.ops:
        if isinstance(op, Logits):
            return forward.buffers[op.x]
        if isinstance(op, TakeRows):
            forward.buffers[op.x] = forward.buffers[op.x][EVERY // 2 :: EVERY]
        forward.apply(op)
    raise AssertionError("a program ends with logits")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--noise", type=float)
    asked = parser.parse_args()
    with open_checkpoint(resolve(asked.model).path) as checkpoint:
        tokenizer, source = open_tokenizer(checkpoint), read_source(checkpoint)
        files = sorted(TEXTS.glob("*.txt"))
        texts = [(tokenizer.encode_prompt("") + tokenizer.encode(file.read_text("utf-8")))[:TOKENS] for file in files]
        exact = log_softmax(rows_of(source, texts, ()))
        singly = [((kind,), 0) for kind in KINDS]
        for kinds, draw in [*singly, (KINDS, 0)] if asked.noise is None else [(KINDS, draw) for draw in range(DRAWS)]:
            found = divergence(exact, log_softmax(rows_of(source, texts, kinds, asked.noise, draw)))
            print(f"{'all' if kinds == KINDS else kinds[0]:10} {found.mean():.3f}", flush=True)


if __name__ == "__main__":
    main()
