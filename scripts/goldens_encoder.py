"""Writes tests/data/encoders/: tiny BERTs, and what transformers makes of some texts with them.

Weights follow from names (tests/models/random_values.py), so only their names, types and shapes are stored.
``bert/golden.npz`` has ``tokens`` int32 and ``lengths`` int32 of the texts, and of each the ``mean`` of its rows and
its ``first`` one, float32 ``[texts, hidden]``. ``scorer/golden.npz`` has the same of pairs of texts, ``seconds`` int32
that say where in each the second text begins, and its ``logit`` float32.

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
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, BertModel

ENCODERS = Path(__file__).resolve().parent.parent / "tests" / "data" / "encoders"
SIZES: dict[str, Any] = {
    "vocab_size": 200,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 160,
    "layer_norm_eps": 1e-12,
}
LENGTHS = (1, 2, 17, 40, 129, 150)
SECONDS = (0, 1, 9, 3, 100, 149)  # where the second texts of pairs of these lengths begin


def main(folder: str | None) -> None:
    torch.set_num_threads(1)
    write_bert()
    write_scorer()
    if folder is not None:
        write_minilm(Path(folder))


def write_bert() -> None:
    model = with_random_weights("bert", BertModel(BertConfig(**SIZES, architectures=["BertModel"])))
    rows = [hidden_rows(model, text) for text in texts()]
    save("bert", mean=np.stack([row.mean(0) for row in rows]), first=np.stack([row[0] for row in rows]))


def write_scorer() -> None:
    config = BertConfig(**SIZES, architectures=["BertForSequenceClassification"], num_labels=1)
    model = with_random_weights("scorer", BertForSequenceClassification(config))
    logits = []
    for text, second in zip(texts(), SECONDS, strict=True):
        types = torch.arange(len(text))[None] >= second
        with torch.no_grad():
            logits.append(model(ids(text), token_type_ids=types.long()).logits[0, 0].numpy())
    save("scorer", seconds=np.array(SECONDS, np.int32), logit=np.stack(logits))


def texts() -> list[np.ndarray]:
    tokens = np.random.default_rng(0).integers(0, SIZES["vocab_size"], sum(LENGTHS)).astype(np.int32)
    return np.split(tokens, np.cumsum(LENGTHS)[:-1])


def save(name: str, **results: np.ndarray) -> None:
    lengths = np.array(LENGTHS, np.int32)
    file = ENCODERS / name / "golden.npz"
    np.savez_compressed(file, allow_pickle=False, tokens=np.concatenate(texts()), lengths=lengths, **results)


def with_random_weights(name: str, model: Any) -> Any:
    """``model`` with weights that follow from their names, described in the folder ``name``."""
    folder = ENCODERS / name
    folder.mkdir(parents=True, exist_ok=True)
    specs = tensor_specs(model)
    (folder / "config.json").write_text(json.dumps(model.config.to_dict(), indent=1, sort_keys=True) + "\n", "utf-8")
    lines = [f"{json.dumps(s.name)}: {json.dumps([s.dtype, list(s.shape), s.mean, s.spread])}" for s in specs]
    (folder / "tensors.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
    state = {spec.name: torch.from_numpy(tensor(name, spec)) for spec in specs}
    model.load_state_dict(state, strict=False)
    return model.eval()


def tensor_specs(model: Any) -> list[TensorSpec]:
    """Names and shapes as transformers saves ``model``; norms are near 1, the rest as large as in real models."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        with safe_open(Path(folder) / "model.safetensors", "pt") as file:
            shapes = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118, no mapping
    norms = {name for name in shapes if name.endswith("LayerNorm.weight")}
    return [
        TensorSpec(name, "F32", shape, 1.0 if name in norms else 0.0, 0.1 if len(shape) == 1 else 0.15)
        for name, shape in sorted(shapes.items())
    ]


def ids(tokens: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(tokens.astype(np.int64))[None]


def hidden_rows(model: Any, tokens: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        rows: np.ndarray = model(ids(tokens)).last_hidden_state[0].numpy()
    return rows


def write_minilm(folder: Path) -> None:
    """From ``model.safetensors`` itself: what an older transformers has saved, a newer one reads with other names."""
    model = BertModel(BertConfig.from_pretrained(folder)).eval()
    model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    sentences = (ENCODERS / "bert" / "sentences.txt").read_text("utf-8").splitlines()
    vectors = [
        hidden_rows(model, np.array(tokenizer(text, split_special_tokens=True)["input_ids"])).mean(0)
        for text in sentences
    ]
    rows = np.stack(vectors)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    np.savez_compressed(ENCODERS / "bert" / "minilm.npz", allow_pickle=False, vectors=rows.astype(np.float16))
    print(f"minilm: {len(rows)} vectors")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
