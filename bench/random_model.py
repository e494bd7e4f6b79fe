"""Writes a GGUF file of random weights in a larger model's shape, to measure speed where weights come from memory.

    python bench/random_model.py qwen2.5-1.5b random.gguf
    trimaran bench latency ./random.gguf --peer llama.cpp

The file is a Llama in all but size (no biases on q, k and v), its matrices Q4_1 or Q4_0 and its embedding, which is the
head too, Q8_0. It has no tokenizer: it can be measured, by us and by llama.cpp, but not served.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
TYPES = {"Q4_0": gguf.GGMLQuantizationType.Q4_0, "Q4_1": gguf.GGMLQuantizationType.Q4_1}
Q8_0 = gguf.GGMLQuantizationType.Q8_0
GROUP = 32


@dataclass(frozen=True)
class Shape:
    """Sizes as in the model's config.json."""

    vocab: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rope_theta: float


SHAPES = {
    "qwen2.5-1.5b": Shape(151936, 1536, 8960, 28, 12, 2, 128, 1e6),
    "smollm2-1.7b": Shape(49152, 2048, 8192, 24, 32, 32, 64, 1.3e5),
    "tiny": Shape(256, 64, 96, 2, 2, 1, 32, 1e4),
}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("file", type=Path)
    parser.add_argument("--format", choices=TYPES, default="Q4_1", help="of the layers' matrices")
    options = parser.parse_args(arguments)
    write(SHAPES[options.shape], options.file, TYPES[options.format])
    print(f"{options.file}: {options.file.stat().st_size / 1e6:,.0f} MB", file=sys.stderr)


def write(shape: Shape, path: Path, kind: gguf.GGMLQuantizationType) -> None:
    """Writes the file; matrices of the same size hold the same values, which costs no speed and less memory here."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(shape.layers)
    writer.add_context_length(32768)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.intermediate)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_theta)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(shape.vocab)
    writer.add_tokenizer_model("none")
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    matrices = {
        "attn_q": (q, shape.hidden),
        "attn_k": (kv, shape.hidden),
        "attn_v": (kv, shape.hidden),
        "attn_output": (shape.hidden, q),
        "ffn_gate": (shape.intermediate, shape.hidden),
        "ffn_up": (shape.intermediate, shape.hidden),
        "ffn_down": (shape.hidden, shape.intermediate),
    }
    made = {size: random_blocks(*size, kind) for size in set(matrices.values())}
    norm = np.ones(shape.hidden, np.float32)
    writer.add_tensor("token_embd.weight", random_blocks(shape.vocab, shape.hidden, Q8_0), raw_dtype=Q8_0)
    writer.add_tensor("output_norm.weight", norm)
    for layer in range(shape.layers):
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", norm)
        for name, size in matrices.items():
            writer.add_tensor(f"blk.{layer}.{name}.weight", made[size], raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def random_blocks(rows: int, cols: int, kind: gguf.GGMLQuantizationType) -> Bytes:
    """A matrix ``[rows, bytes of a row]`` in GGUF's blocks, of values around 0 whose variance is about 1 / ``cols``."""
    random = np.random.default_rng(rows + cols)
    deviation = cols**-0.5
    blocks = rows * cols // GROUP
    if kind is Q8_0:
        terms = [deviation / 74]
    else:
        terms = [deviation / 4.6]  # 4.6: the deviation of 0 to 15
        terms += [-7.5 * deviation / 4.6] if kind is TYPES["Q4_1"] else []
    head = np.array(terms, np.float16).view(np.uint8)
    body = random.integers(0, 256, (blocks, GROUP if kind is Q8_0 else GROUP // 2), np.uint8)
    return np.concatenate([np.broadcast_to(head, (blocks, head.size)), body], axis=1).reshape(rows, -1)


if __name__ == "__main__":
    main()
