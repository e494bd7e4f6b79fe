"""What each format of latent pages costs in exactness, on the keys and values of a trained model.

    python bench/latent_formats.py smollm2                    every format
    python bench/latent_formats.py smollm2 --parts fp8 bf16   latents in the first, what is key alone in the second

There is no trained model with latent attention small enough to run here, so one is made of a trained model with heads:
the pairs of a head that turn fastest are its rotated part, the other dimensions of all keys and all values together a
token's latent, in which keys and values have the same mean square. This is what such models are converted to, and
computes exactly what the model does. In "channels" the latent has the model's own dimensions; in "mixed" they are
multiplied with a random orthogonal matrix, so that no dimension is larger than others. What pages would hold of latents
and rotated parts takes their place in every layer; the three golden texts count the same.

error: of the first layers' outputs, relative (root of mean squares). KL is KL(exact || format) in nats, top-1 how often
both have the same arg-max. Bytes are of a token in one layer in the shape of DeepSeek-V3 (512 and 64).
"""

import argparse
import sys
from pathlib import Path

import numpy as np

from trimaran.base.errors import TrimaranError
from trimaran.base.formats import LATENT_FORMATS, KVFormat, LatentCache
from trimaran.bench.goldens import load_goldens
from trimaran.calibration.forward import Forward, Weights
from trimaran.calibration.weights import StreamedWeights
from trimaran.checkpoint import Checkpoint, open_checkpoint
from trimaran.checkpoint.sources import resolve
from trimaran.evaluate.measures import log_softmax
from trimaran.kernels import reference_ops as ops
from trimaran.kernels.program import Attention, Op, Program
from trimaran.kernels.reference_pages import LatentPages
from trimaran.kernels.rope import rope_table
from trimaran.kernels.step import ExecutorOptions, Float32
from trimaran.models.registry import build_program, read_config
from trimaran.quant.logical import logical_tensors

GOLDENS = Path(__file__).resolve().parent.parent / "tests" / "data" / "goldens"
FORMATS = [fmt for fmt in LATENT_FORMATS if fmt is not KVFormat.FP32]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="catalogue name or path of SmolLM2-135M-Instruct, which the texts belong to")
    parser.add_argument("--tokens", type=int, default=128, help="use only the start of each text")
    parser.add_argument("--parts", type=KVFormat, nargs=2, metavar="FORMAT", help="measure this pair instead")
    arguments = parser.parse_args()
    texts = [golden.tokens[: arguments.tokens].tolist() for golden in load_goldens(GOLDENS, "smollm2")]
    with open_checkpoint(resolve(arguments.model).path) as checkpoint:
        program = build_program(read_config(checkpoint))
        weights = streamed(checkpoint, program)
        exact = Forward(program, weights, texts)
        logits = log_softmax(exact.run(logits=True))
        print("pages      dimensions  bytes/token   error   mean KL    top-1")
        if arguments.parts:  # in the place of a format that it is not
            LATENT_FORMATS[KVFormat.FP32] = tuple(arguments.parts)
        for mixed in (False, True):
            for fmt in [KVFormat.FP32] if arguments.parts else FORMATS:
                rounded = LatentForward(program, weights, texts, fmt, mixed=mixed)
                theirs = log_softmax(rounded.run(logits=True))
                kl = np.sum(np.exp(logits) * (logits - theirs), axis=-1).mean()
                same = np.mean(logits.argmax(axis=-1) == theirs.argmax(axis=-1))
                size = LatentCache(1, 512, 64).token_bytes(fmt)
                name = "mixed" if mixed else "channels"
                label = " + ".join(arguments.parts) if arguments.parts else fmt
                print(f"{label:11}{name:12}{size:11,}{rounded.error:8.4f}{kl:10.4f}{same:9.2%}", flush=True)


def streamed(checkpoint: Checkpoint, program: Program) -> Weights:
    tensors = logical_tensors(checkpoint)
    return StreamedWeights(tensors, checkpoint.kind, read_config(checkpoint), program, checkpoint.release)


class LatentForward(Forward):
    """A forward whose attention reads latents and rotated parts as pages of ``fmt`` hold them."""

    def __init__(
        self, program: Program, weights: Weights, texts: list[list[int]], fmt: KVFormat, *, mixed: bool
    ) -> None:
        super().__init__(program, weights, texts)
        self.lengths = [len(text) for text in texts]
        self.fmt = fmt
        self.mixed = mixed
        self.error = 0.0

    def apply(self, op: Op) -> None:
        if not isinstance(op, Attention):
            super().apply(op)
            return
        qkv = self.buffers[op.qkv]
        first = op.layer == 0
        if first:
            exact = self._apply(op)
        self.buffers[op.qkv] = self.through_pages(op, qkv)
        super().apply(op)
        if first:
            self.error = float(np.linalg.norm(self.buffers[op.out] - exact) / np.linalg.norm(exact))

    def through_pages(self, op: Attention, qkv: Float32) -> Float32:
        """``qkv`` with keys and values read back from pages; a key's rotated part is turned back after that."""
        heads = qkv.reshape(len(qkv), -1, op.head_dim).copy()
        _, keys, values = np.split(heads, [op.heads, op.heads + op.kv_heads], axis=1)  # views
        quarter = op.head_dim // 4
        fast = np.arange(op.head_dim) % (2 * quarter) < quarter
        rest = keys[..., ~fast].reshape(len(qkv), -1), values.reshape(len(qkv), -1)
        sizes = [np.sqrt(np.mean(part * part)) for part in rest]
        latents = np.concatenate([part / size for part, size in zip(rest, sizes, strict=True)], axis=1)
        basis = np.eye(latents.shape[1], dtype=np.float32)
        if self.mixed:
            random = np.random.default_rng(op.layer).standard_normal(basis.shape)
            basis = np.linalg.qr(random)[0].astype(np.float32)
        positions = np.concatenate([np.arange(n) for n in self.lengths])
        cos, sin = (table[positions][:, :quarter] for table in rope_table(op.rope, max(self.lengths)))
        rotated = ops.rotate(keys[..., fast], cos, sin)
        parts = [self.read_back(latents @ basis, rotated[:, head]) for head in range(op.kv_heads)]
        held = parts[0][:, : latents.shape[1]] @ basis.T
        rest_keys, rest_values = np.split(held, [rest[0].shape[1]], axis=1)
        keys[..., ~fast] = (rest_keys * sizes[0]).reshape(len(qkv), op.kv_heads, -1)
        values[:] = (rest_values * sizes[1]).reshape(values.shape)
        keys[..., fast] = ops.rotate(np.stack([part[:, latents.shape[1] :] for part in parts], axis=1), cos, -sin)
        return heads.reshape(qkv.shape)

    def read_back(self, latents: Float32, rope: Float32) -> Float32:
        """Rows ``[latent | rope]`` as the reference executor's pages hold them."""
        options = ExecutorOptions(kv_format=self.fmt)
        cache = LatentCache(1, latents.shape[1], rope.shape[1])
        pages = LatentPages(cache, 0, -(-len(rope) // options.page_size), options, np.float32)
        table = np.arange(-(-len(rope) // options.page_size))
        pages.write(0, table, np.arange(len(rope)), np.concatenate([latents, rope], axis=1))
        held: Float32 = pages.read(0, table, len(rope))
        return held


if __name__ == "__main__":
    try:
        main()
    except TrimaranError as error:
        sys.exit(f"latent_formats: {error}")
