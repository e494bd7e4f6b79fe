"""What an encoder of sentence-transformers makes of a text, from the files beside its ``config.json``."""

from pathlib import Path
from typing import Any

import msgspec

from trimaran.base.errors import CheckpointError, UnsupportedError
from trimaran.base.messages import Score
from trimaran.checkpoint.checkpoint import Checkpoint
from trimaran.checkpoint.json_file import Read, read_object
from trimaran.models.config import EncoderConfig, Pooling
from trimaran.models.fields import Fields

SCORING = "BertForSequenceClassification"  # the architecture of encoders of pairs
_MODULES = "sentence_transformers.models."
_MODES: dict[str, Pooling] = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "first"}

_SIGMOID = "torch.nn.modules.activation.Sigmoid"
_FUNCTIONS: dict[str, Score] = {_SIGMOID: "sigmoid", "torch.nn.modules.linear.Identity": "identity"}


class _Module(msgspec.Struct):
    type: str
    path: str


def read_encoder(checkpoint: Checkpoint, own: Fields) -> tuple[EncoderConfig, int]:
    """The encoder of a model whose ``config.json`` is ``own``, and the most tokens of a text.

    Without sentence-transformers' ``modules.json`` a text's vector is the mean of its rows, of length 1. Raises
    ``UnsupportedError`` naming what else the files ask for.
    """
    directory, positions = checkpoint.directory, own.integer("max_position_embeddings")
    types = own.integer("type_vocab_size", 2)
    if SCORING in checkpoint.metadata.get("architectures", [])[:1]:
        return EncoderConfig(positions, types, "first", normalised=False, score=_read_score(own)), positions
    pooling: Pooling = "mean"
    normalised, longest = True, positions
    if (directory / "modules.json").is_file():
        pooling, normalised = _read_modules(directory, checkpoint.read)
        longest = _longest(directory / "sentence_bert_config.json", positions, checkpoint.read)
    return EncoderConfig(positions, types, pooling, normalised), min(longest, positions)


def _read_score(own: Fields) -> Score:
    """What the one logit becomes a score by: the sigmoid, unless sentence-transformers' ``CrossEncoder`` says other."""
    names = own.optional_mapping("id2label")
    labels = own.integer("num_labels", 2) if names is None else len(names.unread())
    if labels != 1:
        raise UnsupportedError(f"{SCORING} has {labels} labels; a score is made of 1 (num_labels, id2label)")
    theirs = own.optional_mapping("sentence_transformers")
    function = own.text("sbert_ce_default_activation_function", _SIGMOID)
    if theirs is not None:
        function = theirs.text("activation_fn", function)
    if function not in _FUNCTIONS:
        raise UnsupportedError(f"config.json makes scores by {function}; {' or '.join(_FUNCTIONS)} is known")
    return _FUNCTIONS[function]


def _read_modules(directory: Path, read: Read) -> tuple[Pooling, bool]:
    file = directory / "modules.json"
    try:
        modules = msgspec.json.decode(read(file), type=list[_Module])
    except (OSError, msgspec.DecodeError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error
    kinds = [module.type.removeprefix(_MODULES) for module in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise UnsupportedError(f"{file} has the modules {', '.join(kinds)}; Transformer, Pooling, Normalize are known")
    path = directory / modules[1].path / "config.json"
    if not path.exists():  # as the cache, which has no folders, calls it
        path = directory / f"{modules[1].path}_config.json"
    if not path.resolve().is_relative_to(directory.resolve()):
        raise CheckpointError(f"{file} names {modules[1].path}, which is not inside the model's folder")
    values: dict[str, Any] = read_object(path, read)[0]
    modes = [key for key, value in values.items() if key.startswith("pooling_mode_") and value]
    if len(modes) != 1 or modes[0] not in _MODES:
        raise UnsupportedError(f"{path} asks for {' and '.join(modes) or 'no pooling'}; {' or '.join(_MODES)} is known")
    return _MODES[modes[0]], "Normalize" in kinds


def _longest(path: Path, positions: int, read: Read) -> int:
    if not path.is_file():
        return positions
    return Fields(read_object(path, read)[0], path.name).integer("max_seq_length", positions)
