"""GPTQ and AutoAWQ: ``qweight``, ``qzeros`` and ``scales``, with inputs before outputs; GPTQ also ``g_idx``.

Sources: GPTQModel ``nn_modules/qlinear`` and ``utils/model.py``; AutoAWQ ``modules/linear/gemm.py``. Both pack words of
32 bits: GPTQ the weights along the inputs, AutoAWQ along the outputs, in an order of its own. Zero points are packed
along the outputs by both; GPTQ's first format (``checkpoint_format`` "gptq") stores each less one.
"""

import numpy as np
import numpy.typing as npt

from trimaran.base.errors import UnsupportedError
from trimaran.checkpoint.tensors import StorageFormat
from trimaran.quant.integers import AwqWords, Integers, Layout, RowWords
from trimaran.quant.method import Method
from trimaran.quant.parts import Parts
from trimaran.quant.words import Words, unpack, unpack_awq

LEAVES = frozenset({"qweight", "qzeros", "scales", "g_idx"})


def read_qweight(parts: Parts, method: Method) -> Integers:
    """The matrix; raises ``CheckpointError`` where its tensors contradict, ``UnsupportedError`` on other widths.

    In a GPTQ file the words of weights are as many as outputs; in an AutoAWQ file those of zero points are as wide.
    """
    words: Words = parts.matrix("qweight", (StorageFormat.I32,))
    zero_words: Words = parts.matrix("qzeros", (StorageFormat.I32,))
    scales = parts.scales("scales")
    if scales.ndim != 2 or 0 in scales.shape:
        raise parts.wrong("scales", f"has shape {list(scales.shape)}, not [groups, outputs]")
    groups, outputs = scales.shape
    bits, rest = divmod(32 * zero_words.shape[1], outputs)
    if zero_words.shape[0] != groups or rest or not 0 < bits <= 8:
        raise parts.wrong(
            "qzeros", f"has shape {list(zero_words.shape)}, not one number for each of {scales.size} scales"
        )
    if bits not in (4, 8) or (bits == 8 and words.shape[1] != outputs):
        raise UnsupportedError(f"{parts.name} has weights of {bits} bits; readable are 4, and 8 of GPTQ")
    if words.shape[1] == outputs:
        inputs = words.shape[0] * 32 // bits
        layout: Layout = RowWords(words.T, bits, inputs)
        zeros = _gptq_zeros(zero_words, bits, outputs, method.gptq_offset)
    elif words.shape[1] * 8 == outputs:
        inputs = words.shape[0]
        layout = AwqWords(words)
        zeros = unpack_awq(zero_words, slice(0, outputs))
    else:
        raise parts.wrong("qweight", f"has shape {list(words.shape)}, of which {outputs} outputs make neither layout")
    order = parts.column_groups("g_idx", inputs, groups) if "g_idx" in parts else None
    if order is None and inputs % groups:
        raise parts.wrong("scales", f"has {groups} groups, which do not divide {inputs} inputs")
    return Integers(parts.name, (outputs, inputs), bits, layout, scales.T, zeros, order)


def _gptq_zeros(words: Words, bits: int, outputs: int, offset: int) -> npt.NDArray[np.uint8]:
    """Whole words are added to, as tools that wrote the first format subtracted from whole words (with borrows)."""
    ones = sum(offset << place for place in range(0, 32, bits))
    restored = words.view(np.uint32) + np.uint32(ones)
    return unpack(restored.view(np.int32), bits, outputs).T
