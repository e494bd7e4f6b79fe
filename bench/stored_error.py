"""How far weights move from what a quantised checkpoint stores when they are held as by default, or as asked.

    python bench/stored_error.py

Weights are normally distributed; the error is the root mean square of what moves, relative to that of the weights.
"""

from dataclasses import replace

import ml_dtypes
import numpy as np

from trimaran.base.formats import WeightFormat
from trimaran.kernels.dequantise import dequantise
from trimaran.kernels.step import Float32
from trimaran.quant.convert import to_weight
from trimaran.quant.fp8 import Fp8
from trimaran.quant.integers import Integers, RowWords, SignedBytes
from trimaran.quant.stored import Stored

ROWS, COLS, GROUP = 512, 2048, 128


def main() -> None:
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((ROWS, COLS)).astype(np.float32) * np.float32(0.02)
    fp8 = e4m3(weights)
    print(f"e4m3 in blocks of 128x128, from what it was made from: {distance(fp8.values(slice(None)), weights):.2%}")
    four, zeros, eight = integers(weights, 4), integers(weights, 4, zeros=True), integers(weights, 8)
    exact = replace(four, rounded=False)
    mixed = replace(zeros, column_groups=rng.permutation(COLS) % (COLS // GROUP))
    report("e4m3", fp8, WeightFormat.INT8, WeightFormat.BF16, WeightFormat.FP8)
    report("4 bits, as their library rounds products", four, WeightFormat.INT4, WeightFormat.BF16)
    report("4 bits, products unrounded", exact, WeightFormat.INT4, WeightFormat.BF16)
    report("4 bits with zero points", zeros, WeightFormat.INT4Z, WeightFormat.INT8)
    report("4 bits, inputs in another order", mixed, WeightFormat.INT8, WeightFormat.BF16)
    report("8 bits", eight, WeightFormat.INT8, WeightFormat.BF16)


def e4m3(weights: Float32) -> Fp8:
    blocks = weights.reshape(ROWS // 128, 128, COLS // 128, 128)
    scale = np.abs(blocks).max(axis=(1, 3)) / 448
    floats = (weights / scale.repeat(128, 0).repeat(128, 1)).astype(ml_dtypes.float8_e4m3fn)
    return Fp8("w", weights.shape, floats, scale, (128, 128))


def integers(weights: Float32, bits: int, *, zeros: bool = False) -> Integers:
    """Groups of 128 with bf16 scales (fp32 and unrounded products for 8 bits), each rounded to nearest."""
    groups = weights.reshape(ROWS, -1, GROUP)
    low, high = groups.min(-1), groups.max(-1)
    most = (1 << bits) - 1
    reach = high - low if zeros else 2 * np.maximum(high, -low)
    scale = reach / most if bits == 8 else (reach / most).astype(ml_dtypes.bfloat16)
    step = scale.astype(np.float32)
    zero = np.clip(np.rint(-low / step), 0, most) if zeros else np.full_like(step, 1 << (bits - 1))
    codes = np.clip(np.rint(groups / step[..., None]) + zero[..., None], 0, most).astype(np.uint32).reshape(ROWS, COLS)
    if bits == 8:
        layout: SignedBytes | RowWords = SignedBytes((codes.astype(np.int16) - 128).astype(np.int8))
    else:
        words = np.bitwise_or.reduce(codes.reshape(ROWS, -1, 8) << np.arange(0, 32, 4, dtype=np.uint32), axis=-1)
        layout = RowWords(words.view(np.int32), 4, COLS)
    stored = zero.astype(np.uint8) if zeros else None
    return Integers("w", (ROWS, COLS), bits, layout, scale, stored, rounded=bits == 4)


def report(what: str, stored: Stored, *formats: WeightFormat) -> None:
    exact = stored.values(slice(None))
    errors = (f"{fmt} {distance(dequantise(to_weight(stored, fmt)), exact):.3%}" for fmt in formats)
    print(f"{what:44} default {stored.default():6} {', '.join(errors)}")


def distance(values: Float32, exact: Float32) -> float:
    return float(np.linalg.norm(values - exact) / np.linalg.norm(exact))


if __name__ == "__main__":
    main()
