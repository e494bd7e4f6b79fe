"""bf16: the upper half of a float32, rounded to nearest even."""

import ml_dtypes
import numpy as np

from trimaran.base.formats import WeightFormat
from trimaran.kernels.step import Float32
from trimaran.kernels.weights import Weight


def quantise(name: str, values: Float32) -> Weight:
    """``values`` ``[rows, cols]`` rounded to bf16."""
    return Weight(name, WeightFormat.BF16, values.shape, values.astype(ml_dtypes.bfloat16).view(np.uint16))
