"""How long ``trimaran compress`` takes and how much memory, on a model of random weights.

``python bench/compress.py --megabytes 1500 --format int4`` writes the model into a temporary folder (``TMPDIR``),
compresses it in a process of its own and prints seconds and the peak of that process's memory. Linux.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

HIDDEN, INNER, KV, VOCAB = 2048, 5632, 512, 512  # widths of a Llama with heads of 128
MATRICES = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (KV, HIDDEN),
    "self_attn.v_proj": (KV, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (INNER, HIDDEN),
    "mlp.up_proj": (INNER, HIDDEN),
    "mlp.down_proj": (HIDDEN, INNER),
}
LAYER = sum(rows * cols for rows, cols in MATRICES.values())  # weights that are compressed

CHILD = """
import sys, time
from pathlib import Path
import numpy as np
from trimaran.calibration.texts import LENGTH, ROWS
from trimaran.checkpoint import open_checkpoint
from trimaran.compress.codebook import Codebook
from trimaran.compress.recipe import Fp8Blocks, Int4
from trimaran.compress.run import compress
source, fmt, shard, calibrated = sys.argv[1:]
RECIPES = {"int4": Int4(), "fp8": Fp8Blocks(), "codebook4": Codebook(4), "codebook3": Codebook(3)}
texts = np.random.default_rng(1).integers(0, 512, (ROWS, LENGTH)).tolist() if calibrated == "True" else []
begin = time.perf_counter()
with open_checkpoint(source) as checkpoint:
    compress(checkpoint, RECIPES[fmt], Path(source) / "small", max_shard=int(shard), texts=[texts] if texts else [])
seconds = time.perf_counter() - begin
peak = next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(seconds, int(peak) * 1024)
"""


@dataclass(frozen=True)
class Cost:
    """``peak``: bytes resident at most, the interpreter and its libraries among them."""

    seconds: float
    peak: int


def measure(layers: int, fmt: str, max_shard: int, *, calibrated: bool) -> Cost:
    """Compresses a model of so many layers into shards of at most ``max_shard`` bytes."""
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), layers)
        command = [sys.executable, "-c", CHILD, folder, fmt, str(max_shard), str(calibrated)]
        seconds, peak = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return Cost(float(seconds), int(peak))


def write_model(folder: Path, layers: int) -> None:
    """A Llama in one file; matrices of one shape are the same random numbers."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for layer in range(layers):
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"model.layers.{layer}.{name}.weight"] = (HIDDEN,)
        shapes |= {f"model.layers.{layer}.{name}.weight": size for name, size in MATRICES.items()}
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    head = json.dumps(header).encode()
    (folder / "config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": layers}))
    random = np.random.default_rng(0)
    data = {
        shape: (random.standard_normal(shape, np.float32) * shape[-1] ** -0.5).astype(ml_dtypes.bfloat16).tobytes()
        for shape in set(shapes.values())
    }
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for shape in shapes.values():
            file.write(data[shape])


CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_attention_heads": HIDDEN // 128,
    "num_key_value_heads": KV // 128,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=1500)
    parser.add_argument("--format", choices=("int4", "fp8", "codebook4", "codebook3"), default="int4")
    parser.add_argument("--max-shard-megabytes", type=int, default=256)
    parser.add_argument("--calibrated", action="store_true", help="int4 and codebooks: with random tokens as text")
    asked = parser.parse_args(arguments)
    layers = max(1, round(asked.megabytes * 1e6 / (2 * LAYER)))
    cost = measure(layers, asked.format, int(asked.max_shard_megabytes * 1e6), calibrated=asked.calibrated)
    weights = layers * LAYER
    print(
        f"{asked.format}: {2 * weights / 1e6:.0f} MB in {cost.seconds:.1f} s"
        f" ({weights / cost.seconds / 1e6:.0f} million weights a second), at most {cost.peak / 1e6:.0f} MB resident"
    )


if __name__ == "__main__":
    main()
