"""Page memory of the reference executor: arrays for each cache of each group, indexed by page, in the page format.

An exported page is what its arrays hold of it, one behind the other. To convert pages is to widen what they hold and to
write that to a page memory of the other format.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from trimaran.base.errors import UnsupportedError
from trimaran.base.formats import (
    GROUP,
    KEY_GROUP,
    LATENT_FORMATS,
    Cache,
    HeadsCache,
    IndexCache,
    KVFormat,
    LatentCache,
    hadamard_width,
)
from trimaran.kernels import reference_ops as ops
from trimaran.kernels.kv_scales import scales_of
from trimaran.kernels.reference_ops import Array
from trimaran.kernels.step import ExecutorOptions, Int32, UInt8

_PAGE_TYPES = {
    KVFormat.FP32: np.float32,
    KVFormat.BF16: ml_dtypes.bfloat16,
    KVFormat.FP8: ml_dtypes.float8_e4m3fn,
    KVFormat.INT8: np.int8,
    KVFormat.FP8_STATIC: ml_dtypes.float8_e4m3fn,
    KVFormat.INT8_STATIC: np.int8,
}
_ROUNDING = {KVFormat.FP8: ops.to_e4m3, KVFormat.INT8: ops.to_int8}
KEYS, VALUES = 0, 1


class _Store(ABC):
    """Numbers ``[pages, layers, page_size, ...]`` in one format, with what scales it has, in ``arrays``."""

    fmt: KVFormat
    arrays: tuple[Array, ...]

    @abstractmethod
    def put(self, at: Any, numbers: Array) -> None:
        """Writes ``numbers`` in the store's format; ``at`` is an index of all dimensions but the last."""

    @abstractmethod
    def widened(self, at: Any) -> Array:
        """What the store holds, in the compute type."""

    def convert(self, pages: Int32, to: "_Store") -> None:
        """Fills ``to``, which has as many pages, from ``pages``."""
        if to.fmt is not self.fmt:
            to.put((), self.widened(pages))
            return
        for mine, theirs in zip(self.arrays, to.arrays, strict=True):
            theirs[:] = mine[pages]


class CachePages(ABC):
    """The pages of one cache, held as ``options`` say; ``compute`` is the type that they are widened to when read."""

    def __init__(
        self, cache: Cache, group: int, pages: int, options: ExecutorOptions, compute: type[np.floating]
    ) -> None:
        self._cache = cache
        self._group = group
        self._options = options
        self._compute = compute
        self._page_size = options.page_size
        self.stores = self._make((pages, cache.layers, options.page_size))
        self._arrays = [array for store in self.stores for array in store.arrays]
        self.nbytes = sum(array.nbytes for array in self._arrays)
        self.page_bytes = sum(array[:1].nbytes for array in self._arrays)

    @abstractmethod
    def _make(self, shape: tuple[int, ...]) -> tuple[_Store, ...]:
        """The stores, whose dimensions begin with ``shape``."""

    def export(self, pages: Int32, page_format: KVFormat) -> UInt8:
        """See ``Executor.export_pages``."""
        if page_format is self._options.kv_format:
            return np.concatenate([_bytes(array[pages]) for array in self._arrays], axis=1)
        options = replace(self._options, kv_format=page_format)
        made = type(self)(self._cache, self._group, len(pages), options, self._compute)
        for mine, theirs in zip(self.stores, made.stores, strict=True):
            mine.convert(pages, theirs)
        return np.concatenate([_bytes(array) for array in made._arrays], axis=1)

    def fill(self, pages: Int32, data: UInt8) -> None:
        """Fills ``pages`` with ``data``, which ``export`` made."""
        first = 0
        for array in self._arrays:
            end = first + array[:1].nbytes
            numbers = np.ascontiguousarray(data[:, first:end]).view(array.dtype)
            array[pages] = numbers.reshape(len(pages), *array.shape[1:])
            first = end

    def _at(self, layer: int, table: Array, positions: Array) -> tuple[Any, ...]:
        """Where in a layer the tokens at ``positions`` lie."""
        return table[positions // self._page_size], layer, positions % self._page_size

    def _first(self, layer: int, table: Array, tokens: int) -> tuple[Any, ...]:
        """Where in a layer the pages of the first ``tokens`` tokens lie."""
        return table[: -(-tokens // self._page_size)], layer


class HeadsPages(CachePages):
    """Keys and values; layers of one format lie together."""

    _cache: HeadsCache

    def _make(self, shape: tuple[int, ...]) -> tuple[_Store, ...]:
        cache, fmt, stores = self._cache, self._options.kv_format, []
        pages, _, size = shape
        narrow = tuple(layer for layer in range(cache.layers) if layer not in cache.wide)
        self._places: dict[int, tuple[int, tuple[_Vectors, _Vectors]]] = {}  # of a layer: its number in the stores
        for held, layers in ((fmt, narrow), (fmt.wider, cache.wide)):
            vectors = (pages, len(layers), size, cache.kv_heads, cache.head_dim)
            scales = scales_of(self._options.kv_scales, held, self._group)
            static = [None, None] if scales is None else scales[:, list(layers), :, None]
            if held.fine_keys(cache.head_dim):
                keys: _Vectors = _FineKeys(vectors, self._compute)
            else:
                keys = _Vectors(vectors, held.keys, self._compute, static[KEYS], keys=True)
            values = _Vectors(vectors, held.values, self._compute, static[VALUES])
            self._places |= {layer: (number, (keys, values)) for number, layer in enumerate(layers)}
            stores += [keys, values] if layers else []
        return tuple(stores)

    def format_of(self, layer: int) -> KVFormat:
        """What a layer's pages hold."""
        return self._options.kv_format.wider if layer in self._cache.wide else self._options.kv_format

    def write(self, layer: int, part: int, table: Array, positions: Array, heads: Array) -> None:
        """Writes keys (``part`` 0) or values (1) ``[rows, kv_heads, head_dim]`` in page format."""
        number, parts = self._places[layer]
        parts[part].put(self._at(number, table, positions), heads)

    def read(self, layer: int, part: int, table: Array, first: int, end: int) -> tuple[Array, Array]:
        """Keys or values of positions ``first:end`` ``[tokens, kv_heads, head_dim]`` in page format widened to the
        compute type, and their scales ``[tokens, kv_heads, n]``, of values one for every ``KVFormat.value_group``."""
        skipped = first // self._page_size
        pages = table[skipped : -(-end // self._page_size)]
        tokens = slice(first - skipped * self._page_size, end - skipped * self._page_size)
        number, parts = self._places[layer]
        codes, scales = parts[part].read((pages, number))  # [pages, page_size, kv_heads, head_dim]
        return codes.reshape(-1, *codes.shape[2:])[tokens], scales.reshape(-1, *scales.shape[2:])[tokens]


class _Vectors(_Store):
    """Keys, values or parts of latents: what the format makes of ``[..., dims]``, and a scale for each vector.

    ``int4`` is two numbers a byte, of keys a scale and a minimum for every ``GROUP`` dimensions, of values a scale for
    every ``KVFormat.value_group``. The scales of a static format are ``static`` ``[layers, kv_heads, 1]``; a number
    that is not finite is NaN there, in int8 -128.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        fmt: KVFormat,
        compute: type[np.floating],
        static: Array | None = None,
        *,
        keys: bool = False,
    ) -> None:
        self.fmt = fmt
        self._static = static
        self._keys = keys
        self._compute = compute
        self._dims = shape[-1]
        self._width = hadamard_width(fmt, shape[-1]) if (fmt.integer if keys else fmt.turned_values) else 1
        self._group = fmt.value_group(shape[-1])
        if fmt is KVFormat.INT4:
            groups = -(-shape[-1] // GROUP)
            terms = (groups, 2) if keys else (-(-shape[-1] // self._group),)
            self.arrays = (
                np.zeros((*shape[:-1], groups * GROUP // 2), np.uint8),
                np.zeros((*shape[:-1], *terms), ml_dtypes.bfloat16),
            )
        else:
            self.arrays = (np.zeros(shape, _PAGE_TYPES[fmt]),)
            if fmt in _ROUNDING:
                self.arrays += (np.zeros((*shape[:-1], 1), np.float32),)

    def put(self, at: Any, numbers: Array) -> None:
        numbers = ops.hadamard(numbers, self._width)
        if self.fmt is KVFormat.INT4:
            codes, scales = ops.key_to_int4(numbers) if self._keys else ops.value_to_int4(numbers, self._group)
            self.arrays[0][at] = _pack(codes)
            self.arrays[1][at] = scales
            return
        if self._static is not None:
            clip = ops.clip_to_int8 if self.fmt.integer else ops.clip_to_e4m3
            numbers = clip(numbers, self._static_at(at).astype(numbers.dtype))
        elif self.fmt in _ROUNDING:
            numbers, scales = _ROUNDING[self.fmt](numbers)
            self.arrays[1][at] = scales[..., None]
        self.arrays[0][at] = numbers.astype(self.arrays[0].dtype)

    def _static_at(self, at: Any) -> Array:
        """Static scales in the shape of numbers at an index of the arrays: of a layer, or of all of them."""
        assert self._static is not None
        of_layer = isinstance(at, tuple) and len(at) > 1
        return self._static[at[1]] if of_layer else self._static[:, None]

    def read(self, at: Any) -> tuple[Array, Array]:
        """What is held, of integers after their transform, and its scales ``[..., n]``."""
        numbers = self.arrays[0][at]
        if self.fmt is KVFormat.INT4:
            codes = _unpack(numbers, self._dims).astype(self._compute)
            terms = self.arrays[1][at].astype(self._compute)
            if not self._keys:
                return codes - 7.5, terms
            each = np.repeat(terms, GROUP, axis=-2)[..., : self._dims, :]  # [..., dims, 2]
            return codes * each[..., 0] + each[..., 1], np.ones((*codes.shape[:-1], 1), self._compute)
        wide: Array = numbers.astype(self._compute)
        if self._static is not None:
            if self.fmt.integer:
                wide[numbers == ops.NOT_FINITE] = np.nan
            scales = np.broadcast_to(self._static_at(at), (*numbers.shape[:-1], 1))
        else:
            scales = self.arrays[1][at] if self.fmt in _ROUNDING else np.ones((*numbers.shape[:-1], 1))
        return wide, scales.astype(self._compute)

    def widened(self, at: Any) -> Array:
        numbers, scales = self.read(at)
        if scales.shape[-1] > 1:
            scales = np.repeat(scales, self._group, axis=-1)[..., : self._dims]
        return ops.hadamard(numbers * scales, self._width)


class _FineKeys(_Vectors):
    """Keys of wide heads in ``int4``, as ``ops.key_to_fine_int4`` has them."""

    def __init__(self, shape: tuple[int, ...], compute: type[np.floating]) -> None:
        super().__init__(shape, KVFormat.INT4, compute, keys=True)
        groups = GROUP // KEY_GROUP * -(-shape[-1] // GROUP)  # one more than there are, where codes are padded
        terms = np.zeros((*shape[:-1], groups, 2), np.uint8)
        self.arrays = (self.arrays[0], terms, np.zeros((*shape[:-1], 2), ml_dtypes.bfloat16))

    def put(self, at: Any, numbers: Array) -> None:
        codes, terms, units = ops.key_to_fine_int4(ops.hadamard(numbers, self._width))
        padding = [(0, 0)] * (terms.ndim - 2) + [(0, self.arrays[1].shape[-2] - terms.shape[-2]), (0, 0)]
        for array, part in zip(self.arrays, (_pack(codes), np.pad(terms, padding), units), strict=True):
            array[at] = part

    def read(self, at: Any) -> tuple[Array, Array]:
        packed, terms, units = (array[at] for array in self.arrays)
        codes = _unpack(packed, self._dims).astype(self._compute)
        terms = (terms.astype(self._compute) - np.array([0, 128], self._compute)) * units[..., None, :]
        each = np.repeat(terms.astype(self._compute), KEY_GROUP, axis=-2)[..., : self._dims, :]  # [..., dims, 2]
        return codes * each[..., 0] + each[..., 1], np.ones((*codes.shape[:-1], 1), self._compute)


class LatentPages(CachePages):
    """Latents and rotated key parts, a row ``[latent | rope]`` a token. Either is held in the way of keys, as
    ``LATENT_FORMATS`` says."""

    _cache: LatentCache

    def _make(self, shape: tuple[int, ...]) -> tuple[_Store, ...]:
        fmt, widths = self._options.kv_format, (self._cache.latent, self._cache.rope)
        if fmt not in (KVFormat.FP32, KVFormat.BF16) and any(width % 16 for width in widths):
            raise UnsupportedError(f"{fmt} pages need a latent and a rope of 16s, not {widths[0]} and {widths[1]}")
        parts = zip(LATENT_FORMATS[fmt], widths, strict=True)
        self._parts = tuple(_Vectors((*shape, width), each, self._compute, keys=True) for each, width in parts)
        return self._parts

    def write(self, layer: int, table: Array, positions: Array, rows: Array) -> None:
        """Writes ``rows`` ``[rows, latent + rope]`` in page format."""
        at = self._at(layer, table, positions)
        for part, numbers in zip(self._parts, np.split(rows, [self._cache.latent], axis=-1), strict=True):
            part.put(at, numbers)

    def read(self, layer: int, table: Array, tokens: int) -> Array:
        """The first ``tokens`` rows ``[tokens, latent + rope]`` as page format holds them, in the compute type."""
        at = self._first(layer, table, tokens)
        rows = np.concatenate([part.widened(at) for part in self._parts], axis=-1)
        return rows.reshape(-1, rows.shape[-1])[:tokens]


class IndexPages(CachePages, _Store):
    """Keys of an indexer: fp32 beside fp32 pages, else e4m3 with a scale, absmax / 448, a token."""

    _cache: IndexCache

    def _make(self, shape: tuple[int, ...]) -> tuple[_Store, ...]:
        self.fmt = KVFormat.FP32 if self._options.kv_format is KVFormat.FP32 else KVFormat.FP8
        self.arrays = (np.zeros((*shape, self._cache.dim), _PAGE_TYPES[self.fmt]),)
        if self.fmt is KVFormat.FP8:
            self.arrays += (np.zeros(shape, np.float32),)
        return (self,)

    def write(self, layer: int, table: Array, positions: Array, keys: Array) -> None:
        """Writes ``keys`` ``[rows, dim]`` in page format."""
        self.put(self._at(layer, table, positions), keys)

    def read(self, layer: int, table: Array, tokens: int) -> Array:
        """The first ``tokens`` keys ``[tokens, dim]`` as page format holds them, in the compute type."""
        keys = self.widened(self._first(layer, table, tokens))
        return keys.reshape(-1, keys.shape[-1])[:tokens]

    def put(self, at: Any, numbers: Array) -> None:
        if self.fmt is KVFormat.FP8:
            numbers, self.arrays[1][at] = ops.to_e4m3(numbers)
        self.arrays[0][at] = numbers.astype(self.arrays[0].dtype)

    def widened(self, at: Any) -> Array:
        keys: Array = self.arrays[0][at].astype(self._compute)
        return keys if self.fmt is KVFormat.FP32 else keys * self.arrays[1][at][..., None].astype(self._compute)


def _bytes(pages: Array) -> UInt8:
    """All that ``[n, ...]`` holds, as ``[n, bytes]``."""
    return np.ascontiguousarray(pages).reshape(len(pages), math.prod(pages.shape[1:])).view(np.uint8)


def _pack(codes: Array) -> UInt8:
    """Numbers 0..15 ``[..., dims]``, two neighbours a byte, up to a multiple of ``GROUP`` with zeros."""
    padding = [(0, 0)] * (codes.ndim - 1) + [(0, -codes.shape[-1] % GROUP)]
    whole = np.pad(codes.astype(np.uint8), padding)
    return whole[..., ::2] | whole[..., 1::2] << np.uint8(4)


def _unpack(packed: UInt8, dims: int) -> UInt8:
    codes: UInt8 = np.stack([packed & np.uint8(15), packed >> np.uint8(4)], axis=-1).reshape(*packed.shape[:-1], -1)
    return codes[..., :dims]
