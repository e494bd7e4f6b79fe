"""Integers of 4 or 8 bits packed into 32-bit words, as quantisation tools store them, to bytes and to our nibbles."""

import numpy as np
import numpy.typing as npt

from trimaran.base.formats import GROUP

Codes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.int32]

_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # AutoAWQ keeps output 8c + _AWQ_ORDER[p] of word c in bits 4p to 4p + 3


def unpack(words: Words, bits: int, cols: int) -> Codes:
    """``[rows, ceil(cols * bits / 32)]`` words, the first value in the lowest bits, to codes ``[rows, cols]``."""
    octets = _octets(words)
    if bits == 8:
        return octets[:, :cols]
    wide = octets.astype(np.uint16)
    pairs = (wide & 15) | (wide & 0xF0) << 4
    return pairs.astype("<u2", copy=False).view(np.uint8)[:, :cols]


def pack_nibble_words(codes: Codes) -> Words:
    """Codes of 4 bits ``[rows, cols]`` to words ``[rows, cols / 8]``, the first value lowest; inverse of ``unpack``."""
    octets = codes[:, 0::2] | codes[:, 1::2] << 4
    return octets.view("<i4")


def repack_nibbles(words: Words) -> Codes:
    """``[rows, cols / 8]`` words of 4 bits, the first value lowest, to the nibbles of ``Weight`` ``[rows, cols / 2]``.

    Of 16 bytes of a group, byte ``m`` holds values ``2m`` and ``2m + 1``; it shall hold values ``m`` and ``m + 16``.
    """
    halves = _octets(words).reshape(len(words), -1, 2, GROUP // 4)
    low, high = halves[:, :, 0].astype(np.uint16), halves[:, :, 1].astype(np.uint16)
    even = low & 0x0F | (high & 0x0F) << 4
    odd = low >> 4 | high & 0xF0
    pairs = even | odd << 8
    return pairs.astype("<u2", copy=False).view(np.uint8).reshape(len(words), -1)


def unpack_awq(words: Words, outputs: slice) -> Codes:
    """The columns ``outputs`` of AutoAWQ's words ``[rows, cols / 8]``, transposed: codes ``[outputs, rows]``."""
    first, last = outputs.start // 8, -(-outputs.stop // 8)
    part = np.ascontiguousarray(words[:, first:last].T).view(np.uint32)
    codes = np.empty((len(part), 8, len(words)), np.uint8)
    for place, output in enumerate(_AWQ_ORDER):
        np.copyto(codes[:, output], part >> np.uint32(4 * place) & np.uint32(15), casting="unsafe")
    return codes.reshape(-1, len(words))[outputs.start - 8 * first : outputs.stop - 8 * first]


def _octets(words: Words) -> Codes:
    """The bytes of each row, aligned and in the file's order, which is little-endian."""
    return np.array(words, "<i4", order="C").view(np.uint8)
