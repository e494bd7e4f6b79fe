"""Which tensors make one matrix, and which methods are refused by name."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from trimaran.base.errors import CheckpointError, UnsupportedError
from trimaran.base.formats import WeightFormat
from trimaran.quant.convert import to_vector, to_weight
from trimaran.quant.logical import logical_tensors
from trimaran.quant.method import read_method

from .stored_files import Files, words

FP8 = ml_dtypes.float8_e4m3fn
CODES = words(np.ones((4, 64), np.int64), 4)
INT4 = {"weight_packed": CODES, "weight_scale": np.ones((4, 2), np.float16), "weight_shape": np.array([4, 64])}


def test_a_quantised_matrix_is_one_tensor_under_its_plain_name() -> None:
    arrays = {
        "embed.weight": np.ones((4, 64), np.float32),
        **{f"mlp.{leaf}": array for leaf, array in INT4.items()},
        "attn.weight": np.ones((4, 64), np.float32).astype(FP8),
        "mlp.bias": np.ones(4, np.float32),
        "attn.weight_scale_inv": np.ones((1, 1), np.float32),
        "attn.input_scale": np.float32(1).reshape(()),
        "attn.k_scale": np.float32(1).reshape(()),
        "visual.position_ids": np.arange(4),
    }
    found = {tensor.name: tensor for tensor in logical_tensors(Files(arrays))}
    assert list(found) == [
        "embed.weight",
        "mlp.weight",
        "mlp.bias",
        "attn.weight",
        "attn.input_scale",
        "attn.k_scale",
        "visual.position_ids",
    ]
    assert to_weight(found["mlp.weight"].open(), None).fmt is WeightFormat.INT4
    assert to_weight(found["attn.weight"].open(), None).fmt is WeightFormat.INT8
    assert to_vector(found["mlp.bias"].open()).shape == (4,)


def test_what_is_quantised_is_decided_by_the_tensors() -> None:
    """A configuration whose lists name other modules, or none, changes nothing."""
    config = {"quant_method": "compressed-tensors", "ignore": ["re:.*mlp.*"], "config_groups": {}}
    arrays = {f"mlp.{leaf}": array for leaf, array in INT4.items()} | {"head.weight": np.ones((4, 64), np.float32)}
    found = {tensor.name: tensor.open() for tensor in logical_tensors(Files(arrays, config))}
    assert {name: read.grid() for name, read in found.items()} == {"mlp.weight": "int4", "head.weight": "fp32"}


def test_integers_stand_for_no_weights_by_themselves() -> None:
    (tensor,) = logical_tensors(Files({"visual.weight": np.arange(32).reshape(1, 32)}))
    with pytest.raises(UnsupportedError, match=r"visual\.weight holds I64, which stands for no weights"):
        to_weight(tensor.open(), None)


def test_a_stack_of_matrices_is_read_as_its_rows() -> None:
    values = np.arange(2 * 3 * 32, dtype=np.float32).reshape(2, 3, 32)
    (tensor,) = logical_tensors(Files({"experts.weight": values}))
    assert tensor.open().shape == (2, 3, 32)
    for target in (None, WeightFormat.INT8):
        assert to_weight(tensor.open(), target).shape == (6, 32)


NIBBLES = np.ones((4, 32), np.uint8)
REFUSED: dict[str, tuple[dict[str, np.ndarray], str]] = {
    "NVFP4 of compressed-tensors": (
        {
            "weight_packed": NIBBLES,
            "weight_scale": np.ones((4, 4), np.float32).astype(FP8),
            "weight_global_scale": np.ones(1, np.float32),
        },
        "NVFP4",
    ),
    "NVFP4 of ModelOpt": (
        {"weight": NIBBLES, "weight_scale": np.ones((4, 4), np.float32).astype(FP8), "weight_scale_2": np.ones(1)},
        "NVFP4",
    ),
    "MXFP4": ({"weight_packed": NIBBLES, "weight_scale": np.ones((4, 2), np.uint8)}, "MXFP4"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_kinds_that_are_not_read_are_refused_when_opened(case: str) -> None:
    leaves, method = REFUSED[case]
    (tensor,) = logical_tensors(Files({f"a.b.{leaf}": array for leaf, array in leaves.items()}))
    assert tensor.name == "a.b.weight"
    with pytest.raises(UnsupportedError, match=rf"a\.b\.weight is quantised by {method}"):
        tensor.open()


@pytest.mark.parametrize("method", ["bitsandbytes", "hqq", "mxfp4", "quark", None, 3])
def test_methods_that_are_not_read_are_refused_by_name(method: Any) -> None:
    with pytest.raises(UnsupportedError, match=f"quantised by {method!r}; readable are fp8, .*awq, gptq"):
        logical_tensors(Files({}, {"quant_method": method}))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "awq", "version": "gemv"}, "version is 'gemv'; of awq files, 'gemm' is readable"),
        ({"quant_method": "gptq", "checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'"),
        ({"quant_method": "compressed-tensors", "transform_config": {"config_groups": {"R4": {}}}}, "rotations"),
    ],
)
def test_variants_that_are_not_read_are_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        read_method({"quantization_config": config})


@pytest.mark.parametrize("block", [[128], [0, 128], [-128, 128], [128.0, 128], "128", [True, 128]])
def test_a_block_must_have_two_sizes(block: Any) -> None:
    with pytest.raises(CheckpointError, match="two positive sizes"):
        read_method({"quantization_config": {"quant_method": "fp8", "weight_block_size": block}})


def test_the_configuration_lies_at_the_top_or_beside_the_text_model() -> None:
    config = {"quant_method": "gptq", "checkpoint_format": "gptq_v2"}
    assert read_method({"text_config": {"quantization_config": config}}).gptq_offset == 0
    assert read_method({"quantization_config": config, "text_config": {}}).gptq_offset == 0
    assert read_method({"text_config": {}}).gptq_offset == 1
    structured = {"config_groups": {"g": {"weights": {"strategy": "block", "block_structure": [64, 32]}}}}
    assert read_method({"quantization_config": {"quant_method": "compressed-tensors", **structured}}).block == (64, 32)
    assert read_method({"quantization_config": {"quant_method": "fp8", "weight_block_size": None}}).block == (128, 128)
    with pytest.raises(CheckpointError, match="must be an object"):
        read_method({"quantization_config": "fp8"})
