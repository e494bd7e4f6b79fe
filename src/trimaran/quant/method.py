"""What ``quantization_config`` says and tensors do not: which tool wrote them, and how it counts.

Sources: ``QuantizationConfigMixin`` and its kin in transformers, compressed-tensors, GPTQModel, AutoAWQ. What is
quantised is seen by the tensors that are there, not by this configuration's lists of modules.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trimaran.base.errors import CheckpointError, UnsupportedError

CODEBOOK = "trimaran-codebook"  # what ``trimaran compress --format codebook4`` writes: ``quant/squeezed.py``
READABLE = ("fp8", "fbgemm_fp8", "modelopt", "compressed-tensors", "awq", "gptq", CODEBOOK)


@dataclass(frozen=True)
class Method:
    """``gptq_offset``: what GPTQ files of format 1 subtract from every zero point. ``block``: rows and columns that
    share a scale of FP8, where scales are neither one nor one per row."""

    name: str = "none"
    gptq_offset: int = 1
    block: tuple[int, int] = (128, 128)


def read_method(config: Mapping[str, Any]) -> Method:
    """The method that a model's ``config.json`` names, at its top or in ``text_config``.

    Raises ``UnsupportedError`` on one that is not readable, ``CheckpointError`` on values that make no sense.
    """
    quantisation = config.get("quantization_config")
    if quantisation is None and isinstance(text := config.get("text_config"), Mapping):
        quantisation = text.get("quantization_config")
    if quantisation is None:
        return Method()
    if not isinstance(quantisation, Mapping):
        raise CheckpointError(f"config.json: quantization_config must be an object, not {quantisation!r:.60}")
    name = quantisation.get("quant_method")
    if name not in READABLE:
        raise UnsupportedError(
            f"config.json: the model is quantised by {name!r:.40}; readable are {', '.join(READABLE)}"
        )
    if name == "awq":
        _only(quantisation, "version", "gemm")
    if name == "compressed-tensors" and quantisation.get("transform_config"):
        raise UnsupportedError("config.json: quantization_config.transform_config asks for rotations while running")
    offset = 1
    if name == "gptq" and quantisation.get("checkpoint_format") != "gptq_v2":
        _only(quantisation, "checkpoint_format", "gptq")
    elif name == "gptq":
        offset = 0
    return Method(name, offset, _block(quantisation))


def _only(quantisation: Mapping[str, Any], key: str, readable: str) -> None:
    value = quantisation.get(key)
    if value is not None and str(value).lower() != readable:
        raise UnsupportedError(
            f"config.json: quantization_config.{key} is {value!r:.40}; of {quantisation['quant_method']} files,"
            f" {readable!r} is readable"
        )


def _block(quantisation: Mapping[str, Any]) -> tuple[int, int]:
    block = quantisation.get("weight_block_size")
    groups = quantisation.get("config_groups")
    if block is None and isinstance(groups, Mapping):
        schemes = [group.get("weights") for group in groups.values() if isinstance(group, Mapping)]
        blocks = [scheme["block_structure"] for scheme in schemes if scheme and scheme.get("block_structure")]
        block = blocks[0] if blocks else None
    if block is None:
        return Method.block
    if not isinstance(block, list) or len(block) != 2 or not all(type(size) is int and size > 0 for size in block):
        raise CheckpointError(f"config.json: a block of FP8 weights must have two positive sizes, not {block!r:.60}")
    return block[0], block[1]
