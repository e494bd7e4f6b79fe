"""Page memory of the reference executor: an array for each cache of each group, indexed by page."""

from typing import Any

import ml_dtypes
import numpy as np

from trimaran.base.errors import UnsupportedError
from trimaran.base.formats import HeadsCache, IndexCache, KVFormat, LatentCache, hadamard_width
from trimaran.kernels import reference_ops as ops
from trimaran.kernels.reference_ops import Array
from trimaran.kernels.step import ExecutorOptions

_PAGE_TYPES = {
    KVFormat.FP32: np.float32,
    KVFormat.BF16: ml_dtypes.bfloat16,
    KVFormat.FP8: ml_dtypes.float8_e4m3fn,
    KVFormat.INT8: np.int8,
    KVFormat.INT4: np.float32,  # see _Vectors
}
_ROUNDING = {KVFormat.FP8: ops.to_e4m3, KVFormat.INT8: ops.to_int8, KVFormat.INT4: ops.value_to_int4}
KEYS, VALUES = 0, 1


class HeadsPages:
    """Keys and values in the format of ``options``; ``compute`` is the type that they are widened to when read."""

    def __init__(self, cache: HeadsCache, pages: int, options: ExecutorOptions, compute: type[np.floating]) -> None:
        self._page_size = options.page_size
        shape = (pages, cache.layers, options.page_size, cache.kv_heads, cache.head_dim)
        fmt = options.kv_format
        keys = _Vectors(shape, fmt.keys, compute, keys=True)
        values = _Vectors(shape, fmt.values, compute, keys=False)
        self._parts = (keys, values)
        self.nbytes = pages * options.page_size * cache.token_bytes(fmt)

    def write(self, layer: int, part: int, table: Array, positions: Array, heads: Array) -> None:
        """Writes keys (``part`` 0) or values (1) ``[rows, kv_heads, head_dim]`` in page format."""
        self._parts[part].write((table[positions // self._page_size], layer, positions % self._page_size), heads)

    def read(self, layer: int, part: int, table: Array, first: int, end: int) -> tuple[Array, Array]:
        """Keys or values of positions ``first:end`` ``[tokens, kv_heads, head_dim]`` in page format widened to the
        compute type, and their scales ``[tokens, kv_heads, 1]``."""
        skipped = first // self._page_size
        pages = table[skipped : -(-end // self._page_size)]
        tokens = slice(first - skipped * self._page_size, end - skipped * self._page_size)
        codes, scales = self._parts[part].read((pages, layer))  # [pages, page_size, kv_heads, head_dim]
        return codes.reshape(-1, *codes.shape[2:])[tokens], scales.reshape(-1, *scales.shape[2:])[tokens]


class _Vectors:
    """The keys or the values of heads: what the format makes of ``[..., head_dim]``, and a scale for each vector.

    The groups of ``int4`` keys are held dequantised; ``int4`` values as what their scale is multiplied with.
    """

    def __init__(self, shape: tuple[int, ...], fmt: KVFormat, compute: type[np.floating], *, keys: bool) -> None:
        self._fmt = fmt
        self._keys = keys
        self._compute = compute
        self._width = hadamard_width(shape[-1]) if fmt is KVFormat.INT4 or (fmt.integer and keys) else 1
        self._numbers: Array = np.zeros(shape, _PAGE_TYPES[fmt])
        self._scales: Array = np.ones((*shape[:-1], 1), np.float32)

    def write(self, at: tuple[Any, ...], heads: Array) -> None:
        heads = ops.hadamard(heads, self._width)
        if self._fmt is KVFormat.INT4 and self._keys:
            heads = ops.key_to_int4(heads)
        elif self._fmt in _ROUNDING:
            heads, scales = _ROUNDING[self._fmt](heads)
            self._scales[at] = scales[..., None]
        self._numbers[at] = heads.astype(self._numbers.dtype)

    def read(self, at: tuple[Any, ...]) -> tuple[Array, Array]:
        return self._numbers[at].astype(self._compute), self._scales[at].astype(self._compute)


class LatentPages:
    """Latents and rotated key parts, a row ``[latent | rope]`` a token.

    In int8 either part has a scale, absmax / 127, and is rounded after ``hadamard``; reading undoes both.
    """

    def __init__(self, cache: LatentCache, pages: int, options: ExecutorOptions, compute: type[np.floating]) -> None:
        self.int8 = options.kv_format is KVFormat.INT8
        if self.int8 and (cache.latent % 16 or cache.rope % 16):
            raise UnsupportedError(f"int8 pages need a latent and a rope of 16s, not {cache.latent} and {cache.rope}")
        self._latent = cache.latent
        self._page_size = options.page_size
        self._compute = compute
        shape = (pages, cache.layers, options.page_size, cache.latent + cache.rope)
        self._pages: Array = np.zeros(shape, _PAGE_TYPES[options.kv_format])
        self._scales: Array = np.zeros((*shape[:-1], 2) if self.int8 else 0, np.float32)

    @property
    def nbytes(self) -> int:
        return self._pages.nbytes + self._scales.nbytes

    def write(self, layer: int, table: Array, positions: Array, rows: Array) -> None:
        """Writes ``rows`` ``[rows, latent + rope]`` in page format."""
        at = (table[positions // self._page_size], layer, positions % self._page_size)
        if self.int8:
            parts, scales = zip(*(ops.to_int8(ops.hadamard(part)) for part in self._parts(rows)), strict=True)
            rows, self._scales[at] = np.concatenate(parts, axis=-1), np.stack(scales, axis=-1)
        self._pages[at] = rows.astype(self._pages.dtype)

    def read(self, layer: int, table: Array, tokens: int) -> Array:
        """The first ``tokens`` rows ``[tokens, latent + rope]`` as page format holds them, in the compute type."""
        pages = table[: -(-tokens // self._page_size)]
        rows: Array = self._pages[pages, layer].astype(self._compute)
        rows = rows.reshape(-1, rows.shape[-1])[:tokens]
        if not self.int8:
            return rows
        scales = self._scales[pages, layer].astype(self._compute).reshape(-1, 2)[:tokens]
        parts = [ops.hadamard(part * scales[:, [i]]) for i, part in enumerate(self._parts(rows))]
        joined: Array = np.concatenate(parts, axis=-1)
        return joined

    def _parts(self, rows: Array) -> list[Array]:
        return np.split(rows, [self._latent], axis=-1)


class IndexPages:
    """Keys of an indexer: fp32 beside fp32 pages, else e4m3 with a scale, absmax / 448, a token."""

    def __init__(self, cache: IndexCache, pages: int, options: ExecutorOptions, compute: type[np.floating]) -> None:
        self._exact = options.kv_format is KVFormat.FP32
        self._page_size = options.page_size
        self._compute = compute
        shape = (pages, cache.layers, options.page_size, cache.dim)
        self._pages: Array = np.zeros(shape, np.float32 if self._exact else ml_dtypes.float8_e4m3fn)
        self._scales: Array = np.zeros(0 if self._exact else shape[:-1], np.float32)

    @property
    def nbytes(self) -> int:
        return self._pages.nbytes + self._scales.nbytes

    def write(self, layer: int, table: Array, positions: Array, keys: Array) -> None:
        """Writes ``keys`` ``[rows, dim]`` in page format."""
        at = (table[positions // self._page_size], layer, positions % self._page_size)
        if not self._exact:
            keys, self._scales[at] = ops.to_e4m3(keys)
        self._pages[at] = keys.astype(self._pages.dtype)

    def read(self, layer: int, table: Array, tokens: int) -> Array:
        """The first ``tokens`` keys ``[tokens, dim]`` as page format holds them, in the compute type."""
        pages = table[: -(-tokens // self._page_size)]
        keys: Array = self._pages[pages, layer].astype(self._compute)
        keys = keys.reshape(-1, keys.shape[-1])[:tokens]
        return keys if self._exact else keys * self._scales[pages, layer].reshape(-1, 1)[:tokens].astype(self._compute)
