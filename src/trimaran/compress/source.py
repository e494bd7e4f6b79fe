"""A model that is compressed, as Hugging Face's layout has it, whichever layout its own files have."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trimaran.checkpoint import Checkpoint
from trimaran.compress.renamed import renamed_tensors
from trimaran.models.config_json import config_json
from trimaran.models.registry import build_program, read_config
from trimaran.quant.logical import LogicalTensor, logical_tensors


@dataclass(frozen=True)
class Source:
    """``tensors`` by the names that they shall have, and the ``config.json`` that goes with them."""

    checkpoint: Checkpoint
    tensors: Sequence[LogicalTensor]
    config: dict[str, Any]


def read_source(checkpoint: Checkpoint) -> Source:
    """The model in ``checkpoint``, which stays open as long; raises ``UnsupportedError`` on a GGUF file of a family
    that has no other layout here, and what reading its configuration raises."""
    if checkpoint.kind == "safetensors":
        return Source(checkpoint, logical_tensors(checkpoint), checkpoint.metadata)
    cfg = read_config(checkpoint)
    return Source(checkpoint, renamed_tensors(checkpoint, cfg, build_program(cfg)), config_json(cfg))
