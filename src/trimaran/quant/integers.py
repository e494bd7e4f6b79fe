"""Matrices of integers of 4 or 8 bits with scales and zero points: ``scale * (code - zero)``, codes unsigned."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trimaran.base.formats import GROUP, WeightFormat
from trimaran.kernels.dequantise import pack_nibbles
from trimaran.kernels.step import Float32
from trimaran.kernels.weights import Weight
from trimaran.quant.rows import in_pieces
from trimaran.quant.stored import Stored
from trimaran.quant.words import Codes, Words, repack_nibbles, unpack, unpack_awq

Half = npt.NDArray[np.float16]


class Layout(ABC):
    """How the codes of a matrix lie in the file."""

    @abstractmethod
    def codes(self, rows: slice) -> Codes:
        """Those rows, ``[rows, cols]``."""

    def nibbles(self, rows: slice) -> Codes:
        """Those rows of 4-bit codes as ``Weight`` holds them; ``cols`` must be a multiple of 32."""
        return pack_nibbles(self.codes(rows))


@dataclass(frozen=True)
class RowWords(Layout):
    """Words ``[rows, cols * bits / 32]`` along the inputs, the first value lowest; they may be a transposed view."""

    words: Words
    bits: int
    cols: int

    def codes(self, rows: slice) -> Codes:
        return unpack(self.words[rows], self.bits, self.cols)

    def nibbles(self, rows: slice) -> Codes:
        return repack_nibbles(self.words[rows])


@dataclass(frozen=True)
class AwqWords(Layout):
    """AutoAWQ's words ``[cols, rows / 8]`` along the outputs."""

    words: Words

    def codes(self, rows: slice) -> Codes:
        start, stop, _ = rows.indices(8 * self.words.shape[1])
        return unpack_awq(self.words, slice(start, stop))


@dataclass(frozen=True)
class SignedBytes(Layout):
    """int8 ``[rows, cols]``; codes are 128 more."""

    integers: npt.NDArray[np.int8]

    def codes(self, rows: slice) -> Codes:
        return self.integers[rows].view(np.uint8) ^ np.uint8(128)


@dataclass(frozen=True)
class Integers(Stored):
    """``scale`` ``[rows, groups]`` in the type of the file, for groups of ``cols / groups`` inputs.

    ``zeros`` are the codes of the number 0, ``[rows, groups]``; ``None`` stands for the middle, 8 or 128.
    ``column_groups`` ``[cols]`` names each input's group where these are not runs of inputs. ``rounded``: a weight is
    the product rounded to the scale's type, as tools for 16-bit activations compute it; else the product is exact.
    """

    bits: int
    layout: Layout
    scale: npt.NDArray[Any]
    zeros: npt.NDArray[np.uint8] | None = None
    column_groups: npt.NDArray[np.intp] | None = None
    rounded: bool = True

    @property
    def middle(self) -> int:
        """The code of the number 0 where no zero points are stored."""
        return 1 << (self.bits - 1)

    def values(self, rows: slice) -> Float32:
        codes = self.layout.codes(rows)
        scale = self.scale[rows].astype(np.float32)
        zero = np.full_like(scale, self.middle) if self.zeros is None else self.zeros[rows].astype(np.float32)
        if self.column_groups is not None:
            scale, zero = scale[:, self.column_groups], zero[:, self.column_groups]
        groups = codes.reshape(len(codes), scale.shape[1], -1).astype(np.float32)
        groups -= zero[..., None]
        groups *= scale[..., None]
        if self.rounded and self.scale.dtype != np.float32:
            with np.errstate(over="ignore"):  # an infinite weight is refused where it meets a format that has none
                groups = groups.astype(self.scale.dtype).astype(np.float32)
        return groups.reshape(codes.shape)

    def grid(self) -> WeightFormat | None:
        groups = self.scale.shape[1]
        if self.column_groups is not None or self.shape[1] % (groups * GROUP):
            return None
        centred = self.zeros is None or bool((self.zeros == self.middle).all())
        if self.bits == 8 and not centred:
            return None
        most = 1 if centred else (1 << self.bits) - 1  # the minimum is up to so many scales, and fp16 too
        if not (np.abs(self.scale.astype(np.float32)).max() * most <= np.finfo(np.float16).max):
            return None
        if self.bits == 8:
            return WeightFormat.INT8
        return WeightFormat.INT4 if centred else WeightFormat.INT4Z

    def on_grid(self) -> Weight:
        fmt = self.grid()
        assert fmt is not None, self.name
        repeats = self.shape[1] // GROUP // self.scale.shape[1]
        scale = np.repeat(self._half_scales(), repeats, axis=1)
        minimum = None
        if fmt is WeightFormat.INT4Z:
            assert self.zeros is not None, self.name
            lowest = self.scale.astype(np.float32) * -self.zeros.astype(np.float32)
            minimum = np.repeat(lowest.astype(np.float16), repeats, axis=1)

        def piece(rows: slice) -> Weight:
            if fmt is WeightFormat.INT8:
                data: npt.NDArray[Any] = (self.layout.codes(rows) ^ np.uint8(128)).view(np.int8)
            else:
                data = self.layout.nibbles(rows)
            lowest = None if minimum is None else minimum[rows]
            return Weight(self.name, fmt, (len(data), self.shape[1]), data, scale[rows], lowest)

        return in_pieces(self.name, self.shape, piece)

    def _half_scales(self) -> Half:
        """The scales as fp16, which holds those of bf16 exactly from 2^-17 on."""
        return self.scale.astype(np.float32).astype(np.float16)
