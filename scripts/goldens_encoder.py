"""Writes tests/data/encoders/bert/: a tiny BERT, and what transformers makes of some texts with it.

Weights follow from names (tests/models/random_values.py), so only their names, types and shapes are stored.
``golden.npz`` has ``tokens`` int32 and ``lengths`` int32 of the texts, and of each the ``mean`` of its rows and its
``first`` one, float32 ``[texts, hidden]``.

With the folder of all-MiniLM-L6-v2 as an argument it writes ``minilm.npz`` too: ``vectors`` float16 ``[texts, 384]``,
of length 1, of the sentences in ``sentences.txt`` (from the texts in bench/, and some with what is seldom in them).

Run by ``make goldens``, or alone: ``PYTHONPATH=. .venv-goldens/bin/python scripts/goldens_encoder.py [FOLDER]``.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from tests.models.random_values import TensorSpec, tensor
from transformers import AutoTokenizer, BertConfig, BertModel

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "data" / "encoders" / "bert"
CONFIG = BertConfig(
    vocab_size=200,
    hidden_size=64,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=96,
    max_position_embeddings=160,
    layer_norm_eps=1e-12,
    architectures=["BertModel"],
)
LENGTHS = (1, 2, 17, 40, 129, 150)


def main(folder: str | None) -> None:
    torch.set_num_threads(1)
    FOLDER.mkdir(parents=True, exist_ok=True)
    specs = tensor_specs()
    (FOLDER / "config.json").write_text(json.dumps(CONFIG.to_dict(), indent=1, sort_keys=True) + "\n", "utf-8")
    lines = [f"{json.dumps(s.name)}: {json.dumps([s.dtype, list(s.shape), s.mean, s.spread])}" for s in specs]
    (FOLDER / "tensors.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
    tokens = np.random.default_rng(0).integers(0, CONFIG.vocab_size, sum(LENGTHS)).astype(np.int32)
    model = BertModel(CONFIG).eval()
    state = {spec.name: torch.from_numpy(tensor("bert", spec)) for spec in specs}
    model.load_state_dict(state, strict=False)
    texts = np.split(tokens, np.cumsum(LENGTHS)[:-1])
    rows = [hidden_rows(model, text) for text in texts]
    np.savez_compressed(
        FOLDER / "golden.npz",
        allow_pickle=False,
        tokens=tokens,
        lengths=np.array(LENGTHS, np.int32),
        mean=np.stack([row.mean(0) for row in rows]),
        first=np.stack([row[0] for row in rows]),
    )
    if folder is not None:
        write_minilm(Path(folder))


def tensor_specs() -> list[TensorSpec]:
    """Names and shapes as transformers saves the model; norms are near 1, the rest as large as in real models."""
    with tempfile.TemporaryDirectory() as folder:
        BertModel(CONFIG).save_pretrained(folder)
        with safe_open(Path(folder) / "model.safetensors", "pt") as file:
            shapes = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118, no mapping
    norms = {name for name in shapes if name.endswith("LayerNorm.weight")}
    return [
        TensorSpec(name, "F32", shape, 1.0 if name in norms else 0.0, 0.1 if len(shape) == 1 else 0.15)
        for name, shape in sorted(shapes.items())
    ]


def hidden_rows(model: Any, tokens: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        rows: np.ndarray = model(torch.from_numpy(tokens.astype(np.int64))[None]).last_hidden_state[0].numpy()
    return rows


def write_minilm(folder: Path) -> None:
    """From ``model.safetensors`` itself: what an older transformers has saved, a newer one reads with other names."""
    model = BertModel(BertConfig.from_pretrained(folder)).eval()
    model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    sentences = (FOLDER / "sentences.txt").read_text("utf-8").splitlines()
    vectors = [
        hidden_rows(model, np.array(tokenizer(text, split_special_tokens=True)["input_ids"])).mean(0)
        for text in sentences
    ]
    rows = np.stack(vectors)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    np.savez_compressed(FOLDER / "minilm.npz", allow_pickle=False, vectors=rows.astype(np.float16))
    print(f"minilm: {len(rows)} vectors")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
