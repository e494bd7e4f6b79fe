"""The sizes of a model of the catalogue, as far as its weights and its cache depend on them."""

import msgspec


class Experts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Mixture of experts in every layer but the first ``dense``."""

    experts: int
    width: int
    shared_width: int = 0
    dense: int = 0


class Latent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Multi-head latent attention."""

    q_rank: int
    rank: int
    nope: int
    rope: int
    value: int


class Indexer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sparse attention: ``layers`` of the layers choose their tokens themselves."""

    heads: int
    dim: int
    layers: int


class Shape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A decoder's sizes, as in its ``config.json``. Vision towers do not count."""

    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int = 0  # 0: latent attention
    head_dim: int = 0
    intermediate: int
    tied: bool = False
    attention_bias: bool = False
    qk_norm: bool = False
    window: int | None = None  # tokens that layers with a sliding window see: all but every sixth, as in Gemma 3
    experts: Experts | None = None
    latent: Latent | None = None
    indexer: Indexer | None = None
    mtp_layers: int = 0
