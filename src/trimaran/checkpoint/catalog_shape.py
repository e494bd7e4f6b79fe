"""How many weights a model of the catalogue has, from its sizes, and the bytes they take in each format."""

from typing import Literal

import msgspec

from trimaran.base.formats import GROUP, WeightFormat

VECTOR_BYTES = 4  # norms, biases and the like are held as fp32


class Experts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Mixture of experts in every layer but the first ``dense``."""

    experts: int
    width: int
    shared_width: int = 0
    dense: int = 0
    biased: bool = True  # the router has a bias that only chooses


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
    qk_norm: Literal["none", "head", "layer"] = "none"
    norms: int = 2  # per layer
    experts: Experts | None = None
    latent: Latent | None = None
    indexer: Indexer | None = None
    mtp_layers: int = 0

    def weights(self, *, mtp: bool = False) -> "Weights":
        """Counts every weight; with ``mtp`` also those of the multi-token-prediction layers."""
        layers = Weights(0, 0)
        for at in range(self.layers + (self.mtp_layers if mtp else 0)):
            layers += self._layer(at)
        if self.indexer:
            layers += self._indexer(self.indexer) * (self.indexer.layers + (self.mtp_layers if mtp else 0))
        extra = self.mtp_layers if mtp else 0
        ends = Weights((1 if self.tied else 2) * self.vocab * self.hidden, self.hidden)
        return layers + ends + Weights(2 * self.hidden**2, 3 * self.hidden) * extra

    def _layer(self, at: int) -> "Weights":
        attention = self._latent(self.latent) if self.latent else self._heads()
        experts = self.experts
        if experts is None or at < experts.dense:
            forward = Weights(3 * self.hidden * self.intermediate, 0)
        else:
            wide = experts.experts * experts.width + experts.shared_width
            router = experts.experts * self.hidden
            forward = Weights(3 * self.hidden * wide + router, experts.experts if experts.biased else 0)
        return attention + forward + Weights(0, self.norms * self.hidden)

    def _heads(self) -> "Weights":
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        norms = {"none": 0, "head": 2 * self.head_dim, "layer": q + kv}[self.qk_norm]
        return Weights(self.hidden * (2 * q + 2 * kv), norms + (q + 2 * kv if self.attention_bias else 0))

    def _latent(self, latent: Latent) -> "Weights":
        query = latent.q_rank * (self.hidden + self.heads * (latent.nope + latent.rope))
        keys = self.hidden * (latent.rank + latent.rope) + latent.rank * self.heads * (latent.nope + latent.value)
        return Weights(query + keys + self.heads * latent.value * self.hidden, latent.q_rank + latent.rank)

    def _indexer(self, indexer: Indexer) -> "Weights":
        assert self.latent is not None
        query = indexer.heads * indexer.dim * self.latent.q_rank
        return Weights(query + self.hidden * (indexer.dim + indexer.heads), 2 * indexer.dim)


class Weights(msgspec.Struct, frozen=True):
    """Numbers of weights: in matrices, and in vectors, which no format makes smaller."""

    matrices: int
    vectors: int

    @property
    def count(self) -> int:
        return self.matrices + self.vectors

    def __add__(self, other: "Weights") -> "Weights":
        return Weights(self.matrices + other.matrices, self.vectors + other.vectors)

    def __mul__(self, times: int) -> "Weights":
        return Weights(self.matrices * times, self.vectors * times)

    def bytes_in(self, fmt: WeightFormat) -> int:
        """Bytes with every matrix held in ``fmt``."""
        return self.matrices // GROUP * fmt.group_bytes + self.vectors * VECTOR_BYTES
