"""The tiny BERTs of tests/data/encoders as checkpoints; scripts/goldens_encoder.py says what lies beside them."""

import json
from pathlib import Path

from .families import write_safetensors
from .random_values import TensorSpec, tensor

ENCODERS = Path(__file__).resolve().parent.parent / "data" / "encoders"
BERT, SCORER = ENCODERS / "bert", ENCODERS / "scorer"
POOLING = {"first": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens"}


def write_bert(folder: Path, described: Path = BERT, **config: object) -> Path:
    """The tiny BERT that is ``described``, as a checkpoint; ``config`` changes its ``config.json``."""
    values = json.loads((described / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps(values | config), "utf-8")
    listed = json.loads((described / "tensors.json").read_text("utf-8")).items()
    specs = [TensorSpec(name, dtype, tuple(shape), *rest) for name, (dtype, shape, *rest) in listed]
    write_safetensors(folder / "model.safetensors", ((spec, tensor(described.name, spec)) for spec in specs))
    return folder


def write_modules(folder: Path, *modes: str, kinds: tuple[str, ...] = ("Transformer", "Pooling", "Normalize")) -> None:
    paths = {"Transformer": "", "Pooling": "1_Pooling"}
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": paths.get(kind, kind)} for kind in kinds]
    (folder / "modules.json").write_text(json.dumps(modules), "utf-8")
    (folder / "1_Pooling").mkdir(exist_ok=True)
    config = {mode: mode in modes for mode in (*POOLING.values(), "pooling_mode_max_tokens")}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 64, **config}), "utf-8")
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 150}', "utf-8")
