"""Storage formats, each described once. ``csrc/formats.h`` mirrors the sizes; a test compares the two."""

from dataclasses import dataclass
from enum import StrEnum

GROUP = 32  # values that share one scale, in weights (along the input dimension) and in int8 activations


class WeightFormat(StrEnum):
    """How an executor holds a weight matrix ``[out, in]``.

    ``int8`` is ``scale * q``, ``int4`` is ``scale * (q - 8)``, ``int4z`` (with zero point) is ``scale * q + minimum``;
    scales and minima are fp16, one per ``GROUP`` inputs of each output. These are the grids of GGUF Q8_0, Q4_0 and
    Q4_1, so such files load without being quantised a second time.
    """

    FP32 = "fp32"
    BF16 = "bf16"
    INT8 = "int8"
    INT4 = "int4"
    INT4Z = "int4z"

    @property
    def group_bytes(self) -> int:
        """Bytes that ``GROUP`` weights of one output take, scales included."""
        return {"fp32": 128, "bf16": 64, "int8": 34, "int4": 18, "int4z": 20}[self.value]

    @property
    def quantised(self) -> bool:
        return self.value.startswith("int")


class KVFormat(StrEnum):
    """How a KV page holds keys and values.

    ``int8`` is ``scale * q`` with ``q`` in -127..127 and an fp32 scale (absmax / 127) per token and kv head, for keys
    and values apart. Keys are held after a Hadamard transform of every 16 dimensions, which queries go through too.
    """

    FP32 = "fp32"
    BF16 = "bf16"
    INT8 = "int8"

    def token_bytes(self, head_dim: int) -> int:
        """Bytes of one token's key and value of one kv head, scales included."""
        return {"fp32": 8 * head_dim, "bf16": 4 * head_dim, "int8": 2 * head_dim + 8}[self.value]


class ActivationFormat(StrEnum):
    """What a quantised weight is multiplied with: fp32, or int8 with an fp32 scale (absmax / 127) per ``GROUP``."""

    FP32 = "fp32"
    INT8 = "int8"


@dataclass(frozen=True)
class CacheGroup:
    """The shape of one token's cache entry in one layer, and the number of layers that have one."""

    layers: int
    kv_heads: int
    head_dim: int

    def page_bytes(self, fmt: KVFormat, page_size: int) -> int:
        """Bytes of one page (``page_size`` tokens, keys and values, all layers)."""
        return self.layers * self.kv_heads * page_size * fmt.token_bytes(self.head_dim)
