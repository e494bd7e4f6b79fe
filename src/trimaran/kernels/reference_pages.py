"""Page memory of the reference executor: an array for each cache of each group, indexed by page."""

import ml_dtypes
import numpy as np

from trimaran.base.formats import HeadsCache, KVFormat
from trimaran.kernels import reference_ops as ops
from trimaran.kernels.reference_ops import Array
from trimaran.kernels.step import ExecutorOptions

_PAGE_TYPES = {KVFormat.FP32: np.float32, KVFormat.BF16: ml_dtypes.bfloat16, KVFormat.INT8: np.int8}
KEYS, VALUES = 0, 1


class HeadsPages:
    """Keys and values in the format of ``options``; ``compute`` is the type that they are widened to when read."""

    def __init__(self, cache: HeadsCache, pages: int, options: ExecutorOptions, compute: type[np.floating]) -> None:
        self.int8 = options.kv_format is KVFormat.INT8
        self._page_size = options.page_size
        self._compute = compute
        shape = (pages, cache.layers, 2, options.page_size, cache.kv_heads, cache.head_dim)
        self._pages: Array = np.zeros(shape, _PAGE_TYPES[options.kv_format])
        self._scales: Array = np.zeros(shape[:-1] if self.int8 else 0, np.float32)

    @property
    def nbytes(self) -> int:
        return self._pages.nbytes + self._scales.nbytes

    def write(self, layer: int, part: int, table: Array, positions: Array, heads: Array) -> None:
        """Writes keys (``part`` 0) or values (1) ``[rows, kv_heads, head_dim]`` in page format."""
        at = (table[positions // self._page_size], layer, part, positions % self._page_size)
        if self.int8:
            heads, scales = ops.to_int8(ops.hadamard(heads) if part == KEYS else heads)
            self._scales[at] = scales
        self._pages[at] = heads.astype(self._pages.dtype)

    def read(self, layer: int, part: int, table: Array, first: int, end: int) -> tuple[Array, Array]:
        """Keys or values of positions ``first:end`` ``[tokens, kv_heads, head_dim]`` in page format widened to the
        compute type, and the scales ``[tokens, kv_heads]`` of int8."""
        skipped = first // self._page_size
        pages = table[skipped : -(-end // self._page_size)]
        tokens = slice(first - skipped * self._page_size, end - skipped * self._page_size)
        heads = self._pages[pages, layer, part].astype(self._compute)  # [pages, page_size, kv_heads, head_dim]
        heads = heads.reshape(-1, *heads.shape[2:])[tokens]
        if not self.int8:
            return heads, self._scales
        scales = self._scales[pages, layer, part].astype(self._compute)
        return heads, scales.reshape(-1, scales.shape[-1])[tokens]
