"""Builds programs: each method appends one op and returns the buffer that it writes."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from trimaran.base.formats import Cache, CacheGroup, HeadsCache, IndexCache, LatentCache, WeightFormat
from trimaran.kernels.program import (
    Activation,
    Add,
    Attention,
    Buffer,
    Embed,
    Experts,
    Gelu,
    Glu,
    HeadLinear,
    HeadNorm,
    LatentAttention,
    LayerNorm,
    Linear,
    Logits,
    MeanRows,
    Op,
    Program,
    RmsNorm,
    Route,
    RowIndex,
    SelectTokens,
    TakeRows,
    Tanh,
    WeightSpec,
)
from trimaran.models.config import ExpertsConfig, ModelConfig


class LayerNames:
    """Full weight names of layer ``index``: ``w["mlp.down_proj"]`` is ``model.layers.3.mlp.down_proj``."""

    def __init__(self, index: int) -> None:
        self.index = index

    def __getitem__(self, name: str) -> str:
        return f"model.layers.{self.index}.{name}"


class Builder:
    """Collects the ops of one model and the weights they read; ``finish`` returns the program.

    Every op writes a buffer of its own: a buffer has one writer, and is dead after its last reader. Executors plan
    memory from that.
    """

    def __init__(self, cfg: ModelConfig) -> None:
        self.cfg = cfg
        self._ops: list[Op] = []
        self._weights: dict[str, WeightSpec] = {}
        self._layer: int | None = None
        self._layers = 0
        self._groups: list[CacheGroup] = []

    @contextmanager
    def layer(self, index: int) -> Iterator[LayerNames]:
        """Enters layer ``index``; attention inside it reads and writes that layer's cache. Layers come in order."""
        assert self._layer is None, f"layer {index} inside layer {self._layer}"
        assert index == self._layers, f"layer {index} after {self._layers} layers"
        self._layer = index
        yield LayerNames(index)
        self._layer = None
        self._layers += 1

    def embed(
        self, weight: str, scale: float = 1.0, *, index: RowIndex = "token", table_rows: int | None = None
    ) -> Buffer:
        """Rows of ``weight`` ``[table_rows or vocab, hidden]`` times ``scale``: see ``Embed``."""
        if table_rows is None:
            self._need(weight, self.cfg.vocab, self.cfg.hidden)
        else:  # a small table, in which nothing is saved by being coarse
            self._need(weight, table_rows, self.cfg.hidden, least=WeightFormat.BF16)
        out = self._buffer("embed", self.cfg.hidden)
        self._ops.append(Embed(out, weight, scale, index))
        return out

    def rms_norm(self, x: Buffer, weight: str, eps: float | None = None) -> Buffer:
        """``x`` with each row scaled to unit mean square, times ``weight`` ``[width]``; by default the model's eps."""
        self._need(weight, x.width)
        out = self._buffer("norm", x.width, x)
        self._ops.append(RmsNorm(out, x, weight, self.cfg.norm_eps if eps is None else eps))
        return out

    def layer_norm(self, x: Buffer, weight: str) -> Buffer:
        """``x`` with each row's mean taken away and scaled to unit variance, times ``weight``, plus ``weight.bias``."""
        self._need(weight, x.width)
        self._need(f"{weight}.bias", x.width)
        out = self._buffer("norm", x.width, x)
        self._ops.append(LayerNorm(out, x, weight, f"{weight}.bias", self.cfg.norm_eps))
        return out

    def linear(
        self,
        x: Buffer,
        weight: str,
        width: int,
        *,
        bias: bool = False,
        wide: bool = False,
        least: WeightFormat | None = None,
    ) -> Buffer:
        """``x`` times ``weight`` ``[width, x.width]`` transposed, plus the vector ``weight.bias`` if ``bias``.

        ``wide`` inputs keep 15 bits where activations are int8. The matrix is held in ``least`` or finer.
        """
        self._need(weight, width, x.width, least=least)
        if bias:
            self._need(f"{weight}.bias", width)
        out = self._buffer("linear", width, x)
        self._ops.append(Linear(out, x, weight, f"{weight}.bias" if bias else None, wide))
        return out

    def attention(self, qkv: Buffer, *, q_norm: HeadNorm | None = None, k_norm: HeadNorm | None = None) -> Buffer:
        """Attention of this layer over ``qkv`` ``[q | k | v]``, in decoders causal; the result has the width of q."""
        cfg, layer = self.cfg, self._layer
        assert layer is not None, "attention belongs to a layer"
        assert qkv.width == cfg.q_width + 2 * cfg.kv_width, qkv
        for norm, heads in ((q_norm, cfg.heads), (k_norm, cfg.kv_heads)):
            if norm is not None:
                self._need(norm.weight, cfg.head_dim * (heads if norm.whole else 1))
        window = cfg.window if layer in cfg.windowed else None
        group, index = self._place(HeadsCache(1, cfg.kv_heads, cfg.head_dim), window)
        out = self._buffer("attention", cfg.q_width, qkv)
        self._ops.append(
            Attention(
                out,
                qkv,
                group,
                index,
                cfg.heads,
                cfg.kv_heads,
                cfg.head_dim,
                cfg.scale,
                cfg.rope if window is None or cfg.local_rope is None else cfg.local_rope,
                window,
                q_norm,
                k_norm,
                cfg.query_scale,
                causal=cfg.encoder is None,
            )
        )
        return out

    def head_linear(self, x: Buffer, weight: str, heads: int, inputs: int, width: int) -> Buffer:
        """Each head's share of ``x``, its first ``inputs``, times the head's matrix ``[width, inputs]`` transposed.

        The matrices stand between two roundings of what they multiply, hence are held as bf16 or finer.
        """
        assert x.width % heads == 0, x
        assert inputs <= x.width // heads, x
        self._need(weight, heads * width, inputs, least=WeightFormat.BF16)
        out = self._buffer("head_linear", heads * width, x)
        self._ops.append(HeadLinear(out, x, weight, heads, inputs))
        return out

    def latent_attention(
        self, q_latent: Buffer, q: Buffer, kv: Buffer, norm: str, eps: float, selected: Buffer | None = None
    ) -> Buffer:
        """Causal latent attention of this layer, of all tokens or of those in ``selected``; as wide as ``q_latent``."""
        cfg = self.cfg
        assert self._layer is not None, "attention belongs to a layer"
        assert cfg.latent is not None, cfg
        rank, rope = cfg.latent.rank, cfg.rope
        widths = (q_latent.width, q.width, kv.width)
        assert widths == (cfg.heads * rank, cfg.q_width, rank + rope.dims), widths
        self._need(norm, rank)
        group, index = self._place(LatentCache(1, rank, rope.dims), None)
        out = self._buffer("latent_attention", cfg.heads * rank, q_latent)
        self._ops.append(
            LatentAttention(out, q_latent, q, kv, group, index, cfg.heads, rank, cfg.scale, rope, norm, eps, selected)
        )
        return out

    def select_tokens(self, q: Buffer, k: Buffer, weights: Buffer, norm: str, eps: float) -> Buffer:
        """The positions that this layer's indexer chooses; ``norm`` and ``norm.bias`` are a LayerNorm of ``k``."""
        indexer = self.cfg.indexer
        assert self._layer is not None, "an indexer belongs to a layer"
        assert indexer is not None, self.cfg
        widths = (q.width, k.width, weights.width)
        assert widths == (indexer.heads * indexer.dim, indexer.dim, indexer.heads), widths
        self._need(norm, indexer.dim)
        self._need(f"{norm}.bias", indexer.dim)
        group, index = self._place(IndexCache(1, indexer.dim), None)
        out = self._buffer("select_tokens", indexer.top_k, q)
        self._ops.append(
            SelectTokens(
                out,
                q,
                k,
                weights,
                group,
                index,
                indexer.heads,
                indexer.dim,
                indexer.top_k,
                self.cfg.rope,
                norm,
                f"{norm}.bias",
                eps,
            )
        )
        return out

    def glu(self, gate_up: Buffer, activation: Activation = "silu") -> Buffer:
        """``activation(gate) * up`` of ``[gate | up]``; half as wide."""
        assert gate_up.width % 2 == 0, gate_up
        out = self._buffer("glu", gate_up.width // 2, gate_up)
        self._ops.append(Glu(out, gate_up, activation))
        return out

    def gelu(self, x: Buffer) -> Buffer:
        """The exact GELU of each number."""
        out = self._buffer("gelu", x.width, x)
        self._ops.append(Gelu(out, x))
        return out

    def tanh(self, x: Buffer) -> Buffer:
        """The hyperbolic tangent of each number."""
        out = self._buffer("tanh", x.width, x)
        self._ops.append(Tanh(out, x))
        return out

    def route(self, logits: Buffer, experts: ExpertsConfig, bias: str | None) -> Buffer:
        """Each row's experts and their weights from ``logits`` ``[experts]``; the vector ``bias`` moves the choice."""
        assert logits.width == experts.experts, logits
        if bias is not None:
            self._need(bias, experts.experts)
        out = self._buffer("route", 2 * experts.top_k, logits)
        self._ops.append(
            Route(
                out,
                logits,
                experts.top_k,
                experts.scoring,
                bias,
                experts.groups,
                experts.top_groups,
                experts.normalise,
                experts.epsilon,
                experts.factor,
            )
        )
        return out

    def experts(self, x: Buffer, routes: Buffer, gate_up: str, down: str, experts: ExpertsConfig) -> Buffer:
        """The weighted sum of what the experts in ``routes`` make of ``x``; matrices of all experts are one stack."""
        self._need(gate_up, experts.experts * 2 * experts.width, x.width)
        self._need(down, experts.experts * x.width, experts.width)
        out = self._buffer("experts", x.width, x)
        self._ops.append(Experts(out, x, routes, gate_up, down, experts.experts, experts.width))
        return out

    def add(self, a: Buffer, b: Buffer) -> Buffer:
        """``a + b``."""
        assert (a.width, a.logits_rows) == (b.width, b.logits_rows), (a, b)
        out = self._buffer("add", a.width, a)
        self._ops.append(Add(out, a, b))
        return out

    def take_rows(self, x: Buffer) -> Buffer:
        """The rows of ``x`` that need logits."""
        assert not x.logits_rows, x
        out = Buffer(f"take_rows.{len(self._ops)}", x.width, logits_rows=True)
        self._ops.append(TakeRows(out, x))
        return out

    def mean_rows(self, x: Buffer) -> Buffer:
        """The mean of all rows of a sequence, for the rows that need logits."""
        assert not x.logits_rows, x
        out = Buffer(f"mean_rows.{len(self._ops)}", x.width, logits_rows=True)
        self._ops.append(MeanRows(out, x))
        return out

    def logits(self, x: Buffer) -> None:
        """Makes ``x`` the step's result: ``[logits rows, vocab]``, or of an encoder ``hidden`` or 1 wide."""
        encoder = self.cfg.encoder
        width = self.cfg.vocab if encoder is None else self.cfg.hidden if encoder.score is None else 1
        assert (x.width, x.logits_rows) == (width, True), x
        self._ops.append(Logits(x))

    def finish(self) -> Program:
        """The program; asserts that it ends in logits and has every layer."""
        cfg = self.cfg
        assert isinstance(self._ops[-1], Logits), "a program ends with logits"
        assert self._layers == cfg.layers, f"{self._layers} of {cfg.layers} layers were built"
        return Program(
            cfg.family, tuple(self._ops), dict(self._weights), tuple(self._groups), cfg.vocab, cfg.hidden, cfg.context
        )

    def _place(self, entry: Cache, window: int | None) -> tuple[int, int]:
        """Gives a layer its place in the cache: the number of its group, and of the layer in the group's cache of this
        kind. ``entry`` is a cache of one layer."""
        group = next((i for i, g in enumerate(self._groups) if g.window == window), len(self._groups))
        if group == len(self._groups):
            self._groups.append(CacheGroup((), window))
        caches = self._groups[group].caches
        same = next((cache for cache in caches if type(cache) is type(entry)), None)
        layer = 0 if same is None else same.layers
        grown = replace(entry, layers=layer + 1)
        assert same is None or replace(same, layers=layer + 1) == grown, "caches of one kind look alike in all layers"
        kept = (*caches, grown) if same is None else tuple(grown if cache is same else cache for cache in caches)
        self._groups[group] = replace(self._groups[group], caches=kept)
        return group, layer

    def _buffer(self, op: str, width: int, like: Buffer | None = None) -> Buffer:
        return Buffer(f"{op}.{len(self._ops)}", width, logits_rows=like is not None and like.logits_rows)

    def _need(self, name: str, *shape: int, least: WeightFormat | None = None) -> None:
        assert name not in self._weights, f"{name} is read twice"
        self._weights[name] = WeightSpec(name, shape, len(shape) == 2, least)
