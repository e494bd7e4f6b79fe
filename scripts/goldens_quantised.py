"""Writes tests/data/quantised.safetensors: small matrices as quantisation tools store them, and what they stand for.

Each case is a module: its tensors as a checkpoint has them, and ``<case>.expected``, which compressed-tensors or torch
computes from them. AutoAWQ's words are packed as its ``WQLinear_GEMM.from_linear`` does, and compressed-tensors reads
them.

Run ``.venv-goldens/bin/python scripts/goldens_quantised.py`` after ``make goldens`` has made the environment.
"""

from pathlib import Path

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.entrypoints.convert.converters.autoawq import AutoAWQConverter
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import save_file

FILE = Path(__file__).resolve().parent.parent / "tests" / "data" / "quantised.safetensors"
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)

Tensors = dict[str, torch.Tensor]


def main() -> None:
    torch.manual_seed(4)
    int4 = {"num_bits": 4, "type": "int"}
    int8 = {"num_bits": 8, "type": "int"}
    group = {"strategy": "group", "group_size": 32}
    wide = {"strategy": "group", "group_size": 64}
    cases = {
        "int4_group32": library("pack-quantized", (12, 128), **int4, **group, symmetric=True),
        "int4_group64_fp16": library("pack-quantized", (9, 128), torch.float16, **int4, **wide, symmetric=True),
        "int4_group64_zero": library("pack-quantized", (21, 128), **int4, **wide, symmetric=False),
        "int4_channel_odd": library("pack-quantized", (5, 44), **int4, strategy="channel", symmetric=True),
        "int4_channel_fp32": library(
            "pack-quantized", (5, 64), torch.float32, **int4, strategy="channel", symmetric=True
        ),
        "int8_group64": library("pack-quantized", (6, 128), **int8, **wide, symmetric=True),
        "int8_group32_zero": library("pack-quantized", (6, 64), **int8, **group, symmetric=False),
        "w8_channel": library("int-quantized", (6, 64), **int8, strategy="channel", symmetric=True),
        "w8_tensor": library("int-quantized", (6, 64), **int8, strategy="tensor", symmetric=True),
        "w8_channel_zero": library("int-quantized", (6, 64), **int8, strategy="channel", symmetric=False),
        "fp8_channel": library(
            "float-quantized", (6, 64), num_bits=8, type="float", strategy="channel", symmetric=True
        ),
        "fp8_tensor": library("float-quantized", (6, 64), num_bits=8, type="float", strategy="tensor", symmetric=True),
        "fp8_block": fp8_blocks((140, 130), (128, 128), torch.float8_e4m3fn),
        "fp8_powers": fp8_blocks((72, 64), (128, 128), torch.float8_e4m3fn, torch.float8_e8m0fnu),
        "fp8_e5m2": fp8_blocks((40, 64), (128, 128), torch.float8_e5m2),
        "awq_group32": awq((64, 16), 32),
        "awq_channel": awq((96, 24), 96),
    }
    save_file(
        {f"{case}.{leaf}": value.contiguous() for case, tensors in cases.items() for leaf, value in tensors.items()},
        FILE,
    )
    print(f"{FILE}: {len(cases)} cases, {FILE.stat().st_size} bytes")


def library(fmt: str, shape: tuple[int, int], dtype: torch.dtype = torch.bfloat16, **arguments: object) -> Tensors:
    """A random matrix through compressed-tensors, there and back."""
    args = QuantizationArgs(**arguments)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    weight = torch.randn(shape) * 0.05 + (0.0 if args.symmetric else 0.03)
    groups = weight.reshape(shape[0], -1, args.group_size or shape[1])
    if args.strategy == "tensor":
        groups = weight.reshape(1, 1, -1)
    scale, zero = calculate_qparams(groups.amin(-1), groups.amax(-1), args)
    scale = scale.to(dtype).reshape(-1) if args.strategy == "tensor" else scale.to(dtype)
    state = {"weight": weight.to(dtype), "weight_scale": scale, "weight_zero_point": zero.reshape(scale.shape)}
    compressor = BaseCompressor.get_value_from_registry(fmt)
    stored = compressor.compress(state, scheme)
    return {**stored, "expected": compressor.decompress(stored, scheme)["weight"]}


def fp8_blocks(
    shape: tuple[int, int], block: tuple[int, int], dtype: torch.dtype, scale_dtype: torch.dtype = torch.float32
) -> Tensors:
    """Random floats of 8 bits in blocks, some of them partial, and their product with the scales in float32."""
    weight = torch.randn(shape).to(dtype)
    grid = [-(-size // step) for size, step in zip(shape, block, strict=True)]
    scale = (torch.rand(grid) * 0.01 + 1e-4).to(scale_dtype)
    full = scale.float().repeat_interleave(block[0], 0)[: shape[0]].repeat_interleave(block[1], 1)[:, : shape[1]]
    return {"weight": weight, "weight_scale_inv": scale, "expected": weight.float() * full}


def awq(shape: tuple[int, int], group_size: int) -> Tensors:
    """Random codes ``[inputs, outputs]`` packed as AutoAWQ does, read by compressed-tensors."""
    inputs, outputs = shape
    codes = torch.randint(0, 16, shape, dtype=torch.int32)
    zeros = torch.randint(0, 16, (inputs // group_size, outputs), dtype=torch.int32)
    scales = (torch.rand(inputs // group_size, outputs) * 0.01 + 1e-3).half()
    stored = {"qweight": pack_awq(codes), "qzeros": pack_awq(zeros), "scales": scales}
    converted = AutoAWQConverter(group_size=group_size).process({f"m.{leaf}": value for leaf, value in stored.items()})
    args = QuantizationArgs(num_bits=4, type="int", symmetric=False, strategy="group", group_size=group_size)
    packed = {name.removeprefix("m."): value for name, value in converted.items()}
    compressor = BaseCompressor.get_value_from_registry("pack-quantized")
    expected = compressor.decompress(packed, QuantizationScheme(targets=["Linear"], weights=args))["weight"]
    return {**stored, "expected": expected}


def pack_awq(codes: torch.Tensor) -> torch.Tensor:
    packed = torch.zeros(codes.shape[0], codes.shape[1] // 8, dtype=torch.int32)
    for column in range(packed.shape[1]):
        for place, output in enumerate(AWQ_ORDER):
            packed[:, column] |= codes[:, 8 * column + output] << (4 * place)
    return packed


if __name__ == "__main__":
    main()
