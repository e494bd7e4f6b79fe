"""Two tiny Llamas, complete with tokenizer and chat template: one in a GGUF file, one in the Hugging Face layout."""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from math import prod
from pathlib import Path
from random import Random
from typing import Any

from trimaran.text.byte_level import ALPHABET

HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM = 64, 96, 2, 1, 32
CONTROL = ("<|im_start|>", "<|im_end|>", "<bos>")
MERGES = ("h e", "l l", "he ll", "Ġ w")
TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] | trim }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MATRICES = {  # by the name in GGUF files: the name in Hugging Face's, outputs, inputs
    "attn_q": ("self_attn.q_proj", HEADS * HEAD_DIM, HIDDEN),
    "attn_k": ("self_attn.k_proj", KV_HEADS * HEAD_DIM, HIDDEN),
    "attn_v": ("self_attn.v_proj", KV_HEADS * HEAD_DIM, HIDDEN),
    "attn_output": ("self_attn.o_proj", HIDDEN, HEADS * HEAD_DIM),
    "ffn_gate": ("mlp.gate_proj", INNER, HIDDEN),
    "ffn_up": ("mlp.up_proj", INNER, HIDDEN),
    "ffn_down": ("mlp.down_proj", HIDDEN, INNER),
}
_GGML = {"F32": (0, 1, 4), "F16": (1, 1, 2), "Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20), "Q8_0": (8, 32, 34)}
_SCALES = {"Q4_0": 1, "Q4_1": 2, "Q8_0": 1}  # fp16 numbers at the head of a block


@dataclass
class GgufSample:
    """What a GGUF file is made of; ``build`` writes whatever it has been turned into."""

    metadata: dict[str, Any]
    tensors: dict[str, tuple[list[int], str, bytes]] = field(default_factory=dict)

    def build(self, version: int = 3) -> bytes:
        head = b"GGUF" + struct.pack("<IQQ", version, len(self.tensors), len(self.metadata))
        head += b"".join(_text(key) + _typed(value) for key, value in self.metadata.items())
        body = b""
        for name, (shape, kind, data) in self.tensors.items():
            sizes = b"".join(struct.pack("<Q", size) for size in reversed(shape))
            head += _text(name) + struct.pack("<I", len(shape)) + sizes
            head += struct.pack("<IQ", _GGML[kind][0], len(body))
            body += data + bytes(-len(data) % 32)
        return head + bytes(-len(head) % 32) + body


@cache
def gguf_sample() -> GgufSample:
    """A Llama with matrices in several formats."""
    random = Random(0)
    tokens = [*_vocabulary(), *CONTROL]
    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        "llama.block_count": 1,
        "llama.context_length": 128,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": INNER,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": HEAD_DIM,
        "llama.rope.freq_base": 10000.0,
        "llama.vocab_size": len(tokens),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * (len(tokens) - len(CONTROL)) + [3] * len(CONTROL),
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.bos_token_id": len(tokens) - 1,
        "tokenizer.ggml.eos_token_id": len(tokens) - 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }
    sample = GgufSample(metadata)

    def add(name: str, shape: list[int], kind: str) -> None:
        sample.tensors[f"{name}.weight"] = shape, kind, _blocks(random, prod(shape), kind)

    add("token_embd", [len(tokens), HIDDEN], "Q8_0")
    add("output_norm", [HIDDEN], "F32")
    for name, kind in (("attn_norm", "F32"), ("ffn_norm", "F32")):
        add(f"blk.0.{name}", [HIDDEN], kind)
    kinds = ("Q4_0", "F16", "Q8_0", "Q4_1", "F32", "Q4_0", "Q8_0")
    for (name, (_, outputs, inputs)), kind in zip(MATRICES.items(), kinds, strict=True):
        add(f"blk.0.{name}", [outputs, inputs], kind)
    return sample


@cache
def folder_sample() -> Mapping[str, Any]:
    """Files of a folder by name: JSON values, and of ``.safetensors`` files the pair of header and data."""
    random = Random(1)
    tokens = _vocabulary()
    vocab = len(tokens) + len(CONTROL)
    shapes: dict[str, list[int]] = {"model.embed_tokens.weight": [vocab, HIDDEN], "model.norm.weight": [HIDDEN]}
    for norm in ("input_layernorm", "post_attention_layernorm"):
        shapes[f"model.layers.0.{norm}.weight"] = [HIDDEN]
    for name, outputs, inputs in MATRICES.values():
        shapes[f"model.layers.0.{name}.weight"] = [outputs, inputs]
    shards: list[tuple[dict[str, Any], bytes]] = [({}, b""), ({}, b"")]
    where: dict[str, str] = {}
    for number, (name, shape) in enumerate(shapes.items()):
        header, data = shards[number % 2]
        more = _blocks(random, prod(shape), "F32")
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(more)]}
        shards[number % 2] = header, data + more
        where[name] = f"model-{number % 2 + 1:05}-of-00002.safetensors"
    control = [
        {"id": len(tokens) + at, "content": text, "special": True, "single_word": False, "lstrip": False,
         "rstrip": False, "normalized": False}
        for at, text in enumerate(CONTROL)
    ]  # fmt: skip
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "config.json": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": HIDDEN,
            "intermediate_size": INNER,
            "num_hidden_layers": 1,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "head_dim": HEAD_DIM,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "max_position_embeddings": 128,
            "vocab_size": vocab,
            "tie_word_embeddings": True,
            "bos_token_id": vocab - 1,
            "eos_token_id": [vocab - 2],
        },
        "tokenizer.json": {
            "version": "1.0",
            "added_tokens": control,
            "normalizer": None,
            "pre_tokenizer": byte_level,
            "post_processor": None,
            "decoder": byte_level,
            "model": {
                "type": "BPE",
                "vocab": {token: at for at, token in enumerate(tokens)},
                "merges": [merge.split() for merge in MERGES],
            },
        },
        "tokenizer_config.json": {"eos_token": "<|im_end|>", "bos_token": "<bos>", "chat_template": TEMPLATE},
        "generation_config.json": {"eos_token_id": [vocab - 2], "temperature": 0.7},
        "model.safetensors.index.json": {"metadata": {"total_size": 1}, "weight_map": where},
        "model-00001-of-00002.safetensors": shards[0],
        "model-00002-of-00002.safetensors": shards[1],
    }


def write_folder(folder: Path) -> Path:
    """Writes ``folder_sample`` into an empty folder and returns that."""
    for name, content in folder_sample().items():
        (folder / name).write_bytes(file_bytes(content))
    return folder


def file_bytes(content: Any) -> bytes:
    """A file of ``folder_sample`` as it lies on disk."""
    if not isinstance(content, tuple):
        return json.dumps(content).encode("utf-8", "surrogatepass")
    header, data = content
    raw = json.dumps(header).encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(raw)) + raw + bytes(data)


def _vocabulary() -> list[str]:
    return [*ALPHABET, *(merge.replace(" ", "") for merge in MERGES)]


def _blocks(random: Random, values: int, kind: str) -> bytes:
    """Random numbers of about 0.1 in a GGML format."""
    _, per_block, size = _GGML[kind]
    if kind in ("F32", "F16"):
        return struct.pack(f"<{values}{'f' if kind == 'F32' else 'e'}", *(random.gauss(0, 0.1) for _ in range(values)))
    scales = struct.pack(f"<{_SCALES[kind]}e", *([0.001] * _SCALES[kind]))
    return b"".join(scales + random.randbytes(size - len(scales)) for _ in range(values // per_block))


def _text(value: str) -> bytes:
    raw = value.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(raw)) + raw


def _typed(value: Any) -> bytes:
    """Any Python value with the GGUF type that comes nearest to it; items of a list get the type of the first."""
    if isinstance(value, list):
        items = [_typed(item) for item in value]
        kind = items[0][:4] if items else struct.pack("<I", 8)
        same = [item[4:] for item in items if item[:4] == kind]
        return struct.pack("<I", 9) + kind + struct.pack("<Q", len(same)) + b"".join(same)
    if isinstance(value, bool):
        return struct.pack("<IB", 7, value)
    if isinstance(value, int):
        if 0 <= value < 2**32:
            return struct.pack("<II", 4, value)
        return struct.pack("<Iq", 11, value) if -(2**63) <= value < 2**63 else struct.pack("<IQ", 10, value % 2**64)
    if isinstance(value, float):
        return struct.pack("<Id", 12, value) if abs(value) > 3e38 else struct.pack("<If", 6, value)
    return struct.pack("<I", 8) + _text(value if isinstance(value, str) else repr(value))
