"""Writes a GGUF file of random weights in a larger model's shape, to measure speed where weights come from memory.

    python bench/random_model.py qwen2.5-1.5b random.gguf
    trimaran bench latency ./random.gguf --peer llama.cpp

The file is a Llama in all but size (no biases on q, k and v), or a Qwen3-MoE; its matrices are Q4_1 or Q4_0 and its
embedding, which is the head too, Q8_0. It has no tokenizer: it can be measured, by us and by llama.cpp, but not served.
"""

import argparse
import math
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
    experts: int = 0  # of every layer; ``intermediate`` is the width of each
    top_k: int = 0


SHAPES = {
    "qwen2.5-1.5b": Shape(151936, 1536, 8960, 28, 12, 2, 128, 1e6),
    "smollm2-1.7b": Shape(49152, 2048, 8192, 24, 32, 32, 64, 1.3e5),
    "qwen3-moe": Shape(32768, 2048, 768, 6, 32, 4, 128, 1e6, experts=64, top_k=8),  # of 30B-A3B's widths, but few
    "tiny-moe": Shape(256, 64, 32, 2, 2, 1, 32, 1e4, experts=4, top_k=2),
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
    writer = gguf.GGUFWriter(path, "qwen3moe" if shape.experts else "llama")
    writer.add_block_count(shape.layers)
    writer.add_context_length(32768)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.intermediate)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_theta)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(shape.vocab)
    writer.add_tokenizer_model("none")
    if shape.experts:
        writer.add_expert_count(shape.experts)
        writer.add_expert_used_count(shape.top_k)
        writer.add_expert_feed_forward_length(shape.intermediate)
    else:
        writer.add_rope_dimension_count(shape.head_dim)
    norm = np.ones(shape.hidden, np.float32)
    writer.add_tensor("token_embd.weight", random_blocks((shape.vocab, shape.hidden), Q8_0), raw_dtype=Q8_0)
    writer.add_tensor("output_norm.weight", norm)
    sizes = matrices(shape)
    made = {size: random_blocks(size, kind) for size in set(sizes.values())}
    for layer in range(shape.layers):
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", norm)
        if shape.experts:
            for name in ("attn_q_norm", "attn_k_norm"):
                writer.add_tensor(f"blk.{layer}.{name}.weight", norm[: shape.head_dim])
            router = np.random.default_rng(layer).standard_normal((shape.experts, shape.hidden), np.float32)
            writer.add_tensor(f"blk.{layer}.ffn_gate_inp.weight", router)
        for name, size in sizes.items():
            writer.add_tensor(f"blk.{layer}.{name}.weight", made[size], raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def matrices(shape: Shape) -> dict[str, tuple[int, ...]]:
    """A layer's matrices by name; those of experts are one tensor."""
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    sizes: dict[str, tuple[int, ...]] = {
        "attn_q": (q, shape.hidden),
        "attn_k": (kv, shape.hidden),
        "attn_v": (kv, shape.hidden),
        "attn_output": (shape.hidden, q),
    }
    each, suffix = ((shape.experts,), "_exps") if shape.experts else ((), "")
    for name in ("ffn_gate", "ffn_up"):
        sizes[name + suffix] = (*each, shape.intermediate, shape.hidden)
    sizes["ffn_down" + suffix] = (*each, shape.hidden, shape.intermediate)
    return sizes


def random_blocks(size: tuple[int, ...], kind: gguf.GGMLQuantizationType) -> Bytes:
    """Matrices in GGUF's blocks, the last dimension in bytes, of values around 0 whose variance is about 1 / inputs."""
    random = np.random.default_rng(sum(size))
    deviation = size[-1] ** -0.5
    blocks = math.prod(size) // GROUP
    if kind is Q8_0:
        terms = [deviation / 74]
    else:
        terms = [deviation / 4.6]  # 4.6: the deviation of 0 to 15
        terms += [-7.5 * deviation / 4.6] if kind is TYPES["Q4_1"] else []
    head = np.array(terms, np.float16).view(np.uint8)
    body = random.integers(0, 256, (blocks, GROUP if kind is Q8_0 else GROUP // 2), np.uint8)
    return np.concatenate([np.broadcast_to(head, (blocks, head.size)), body], axis=1).reshape(*size[:-1], -1)


if __name__ == "__main__":
    main()
