"""Storage formats, each described once. ``csrc/formats.h`` mirrors the sizes; a test compares the two."""

from dataclasses import dataclass
from enum import StrEnum

from trimaran.base.errors import ConfigError

GROUP = 32  # values that share one scale, in weights (along the input dimension) and in int8 activations
OUTLIER_BYTES = 4  # of a number beside a codebook: fp16, and its column as 16 bits
FP8_BLOCK = 128  # inputs that share a scale in fp8 weights
WIDE_HEAD = 128  # dimensions, above which a head is wide
KEY_GROUP = 16  # dimensions that share a scale in int4 keys of wide heads
VALUE_GROUP = 64  # and in their int4 values


class WeightFormat(StrEnum):
    """How an executor holds a weight matrix ``[out, in]``.

    ``int8`` is ``scale * q``, ``int4`` is ``scale * (q - 8)``, ``int4z`` (with zero point) is ``scale * q + minimum``;
    scales and minima are fp16, one per ``GROUP`` inputs of each output. These are the grids of GGUF Q8_0, Q4_0 and
    Q4_1, so such files load without being quantised a second time.

    ``fp8`` is ``scale * x`` with ``x`` in e4m3 and a float32 scale per ``FP8_BLOCK`` inputs of each output.
    ``codebook4`` and ``codebook3`` are ``scale * level``: codes of 4 or 3 bits number the int8 levels of each output,
    which has one fp16 scale; single numbers, the outliers, are added to that (Kim et al., "SqueezeLLM", 2023).
    """

    FP32 = "fp32"
    BF16 = "bf16"
    INT8 = "int8"
    INT4 = "int4"
    INT4Z = "int4z"
    FP8 = "fp8"
    CODEBOOK4 = "codebook4"
    CODEBOOK3 = "codebook3"

    def row_bytes(self, cols: int) -> int:
        """Bytes of one output with ``cols`` inputs in an executor's memory, scales and levels included."""
        if self is WeightFormat.FP8:
            return cols + 4 * -(-cols // FP8_BLOCK)
        if self.levels:
            return cols * self.code_bits // 8 + 18  # a table of 16 bytes, whatever the number of levels, and a scale
        groups = {"fp32": 128, "bf16": 64, "int8": 34, "int4": 18, "int4z": 20}
        return cols * groups[self.value] // GROUP

    @property
    def levels(self) -> int:
        """Levels of each output, in formats that have a codebook."""
        return 1 << self.code_bits if self.code_bits else 0

    @property
    def code_bits(self) -> int:
        """Bits of a code, in formats that have a codebook; else 0."""
        return {"codebook4": 4, "codebook3": 3}.get(self.value, 0)

    @property
    def quantised(self) -> bool:
        """Whether numbers have scales: such a format holds matrices only."""
        return self not in (WeightFormat.FP32, WeightFormat.BF16)

    @property
    def integer(self) -> bool:
        """Whether it meets int8 activations, in products of integers."""
        return self.quantised and self is not WeightFormat.FP8


class KVFormat(StrEnum):
    """How a KV page holds keys and values; ``int8/int4`` holds keys as the first and values as the second.

    The narrow ones have scales in the page, per token and kv head, for keys and values apart. ``fp8`` is ``scale * x``
    with ``x`` in e4m3 (absmax / 448), ``int8`` is ``scale * q`` with ``q`` in -127..127 (absmax / 127); both scales are
    fp32. ``int4`` has ``q`` in 0..15 and bf16 scales: keys are ``scale * q + minimum`` per ``GROUP`` dimensions, values
    ``scale * (q - 7.5)``. Heads wider than ``WIDE_HEAD`` have more: values a scale per ``VALUE_GROUP``, keys one and a
    minimum per ``KEY_GROUP``, of 8 bits each, as multiples of two bf16 units that a key has. Integer keys and ``int4``
    values are held after a Hadamard transform of ``hadamard_width`` dimensions, which queries go through too and
    outputs back.

    The static ones are ``fp8`` and ``int8`` without scales in the page: one for each layer and kv head, for keys and
    values apart, is given beforehand (``trimaran calibrate``), and what lies beyond it becomes the largest number.
    ``int8-static`` values are transformed too: what one dimension has much of would make the scale of all coarse.
    """

    FP32 = "fp32"
    BF16 = "bf16"
    FP8 = "fp8"
    INT8 = "int8"
    INT4 = "int4"
    INT8_INT4 = "int8/int4"
    FP8_STATIC = "fp8-static"
    INT8_STATIC = "int8-static"

    @property
    def keys(self) -> "KVFormat":
        """How keys are held."""
        return KVFormat(self.value.partition("/")[0])

    @property
    def values(self) -> "KVFormat":
        """How values are held."""
        return KVFormat(self.value.rpartition("/")[2])

    @property
    def integer(self) -> bool:
        """Whether attention multiplies integers."""
        return self.value.startswith("int")

    @property
    def turned_values(self) -> bool:
        """Whether values are held after a Hadamard transform; keys are where attention multiplies integers."""
        return self.values in (KVFormat.INT4, KVFormat.INT8_STATIC)

    @property
    def static(self) -> bool:
        """Whether scales are given beforehand."""
        return self.value.endswith("-static")

    @property
    def wider(self) -> "KVFormat":
        """What layers hold that are exempt from the format: bf16, or fp32 beside fp32."""
        return self if self is KVFormat.FP32 else KVFormat.BF16

    def token_bytes(self, head_dim: int) -> int:
        """Bytes of one token's key and value of one kv head, scales included."""
        return self.keys.key_bytes(head_dim) + self.values.value_bytes(head_dim)

    def fine_keys(self, head_dim: int) -> bool:
        """Whether keys of heads have a scale and a minimum per ``KEY_GROUP``."""
        return self.keys is KVFormat.INT4 and head_dim > WIDE_HEAD

    def key_bytes(self, head_dim: int) -> int:
        """Bytes of a key of a head, scales included; of a format that is no pair."""
        return self.part_bytes(head_dim) + (4 if self.fine_keys(head_dim) else 0)

    def part_bytes(self, dims: int) -> int:
        """Bytes of a part of a latent, held as narrow heads hold keys."""
        groups = -(-dims // GROUP)  # of int4, the last may be half empty
        sizes = {"fp32": 4 * dims, "bf16": 2 * dims, "fp8": dims + 4, "int8": dims + 4, "int4": 20 * groups}
        return dims if self.static else sizes[self.value]

    def value_bytes(self, dims: int) -> int:
        """Bytes of a value, as above."""
        if self is not KVFormat.INT4:
            return self.part_bytes(dims)
        return 16 * -(-dims // GROUP) + 2 * -(-dims // self.value_group(dims))

    def value_group(self, dims: int) -> int:
        """Dimensions of a value that share a scale; of a format that is no pair."""
        return VALUE_GROUP if self is KVFormat.INT4 and dims > WIDE_HEAD else dims


def hadamard_width(fmt: KVFormat, dims: int) -> int:
    """Dimensions of a key or value that are transformed together: 32 or, of 8 bits in a wide head, which has one scale,
    128; less where that does not divide ``dims``.

    ``int4`` has a scale of its own for what is transformed together: to mix more would make all groups like the worst.
    """
    most = WIDE_HEAD if dims > WIDE_HEAD and fmt is not KVFormat.INT4 else GROUP
    return min(most, dims & -dims)


class ActivationFormat(StrEnum):
    """What a quantised weight is multiplied with: fp32, or int8 with an fp32 scale (absmax / 127) per ``GROUP``."""

    FP32 = "fp32"
    INT8 = "int8"


@dataclass(frozen=True)
class HeadsCache:
    """Keys and values of ``kv_heads`` heads, in each of ``layers`` layers; those in ``wide`` are held as
    ``KVFormat.wider``."""

    layers: int
    kv_heads: int
    head_dim: int
    wide: tuple[int, ...] = ()  # ascending

    def token_bytes(self, fmt: KVFormat) -> int:
        """Bytes of one token in all layers."""
        wide = len(self.wide) * fmt.wider.token_bytes(self.head_dim)
        return self.kv_heads * ((self.layers - len(self.wide)) * fmt.token_bytes(self.head_dim) + wide)


# How the two parts of a token of latent attention are held: the latent, which is key and value, and what is key alone.
LATENT_FORMATS = {
    KVFormat.FP32: (KVFormat.FP32, KVFormat.FP32),
    KVFormat.BF16: (KVFormat.BF16, KVFormat.BF16),
    KVFormat.FP8: (KVFormat.FP8, KVFormat.INT8),
    KVFormat.INT8: (KVFormat.INT8, KVFormat.INT8),
    KVFormat.INT4: (KVFormat.INT4, KVFormat.BF16),
    KVFormat.INT8_INT4: (KVFormat.INT4, KVFormat.INT8),
}


@dataclass(frozen=True)
class LatentCache:
    """What multi-head latent attention keeps in each of ``layers`` layers: a latent vector, and the rotated key part
    that all heads share."""

    layers: int
    latent: int
    rope: int

    def token_bytes(self, fmt: KVFormat) -> int:
        """Bytes of one token in all layers: either part as ``LATENT_FORMATS`` says, in the way of keys.

        Raises ``ConfigError`` for formats that latents cannot have.
        """
        if fmt not in LATENT_FORMATS:
            choices = ", ".join(LATENT_FORMATS)
            raise ConfigError(f"{fmt} pages cannot hold the latents of this model; choose one of {choices}")
        latent, rope = LATENT_FORMATS[fmt]
        return self.layers * (latent.part_bytes(self.latent) + rope.part_bytes(self.rope))


@dataclass(frozen=True)
class IndexCache:
    """The keys by which an indexer chooses tokens, ``dim`` wide, in the ``layers`` layers that have an indexer."""

    layers: int
    dim: int

    def token_bytes(self, fmt: KVFormat) -> int:
        """Bytes of one token in all layers: fp32 beside fp32 pages (the oracle), else e4m3 with an fp32 scale."""
        return self.layers * (4 * self.dim if fmt is KVFormat.FP32 else self.dim + 4)


Cache = HeadsCache | LatentCache | IndexCache


@dataclass(frozen=True)
class CacheGroup:
    """Caches that share pages: one page number stands for some tokens in all of them, so they are allocated, held and
    freed together.

    ``window``: only the last so many tokens are read, and pages before them may be given back. Layers that differ in
    this are of different groups; each group has page numbers and a page table of its own.
    """

    caches: tuple[Cache, ...]
    window: int | None = None

    def page_bytes(self, fmt: KVFormat, page_size: int) -> int:
        """Bytes of one page of ``page_size`` tokens."""
        return page_size * sum(cache.token_bytes(fmt) for cache in self.caches)


def bundle_pages(page_size: int) -> int:
    """How many pages, neighbours by number, lie side by side in the native executor's memory: as many as hold the 128
    tokens that attention reads at once (``bundle_bits`` in ``csrc/formats.h``); a power of two."""
    return 1 << max(0, (128 // page_size).bit_length() - 1)
