"""Builds the CPU executor's core from a lowered program: memory first, then op by op."""

from collections.abc import Mapping

import numpy as np

from trimaran.base.formats import (
    ActivationFormat,
    CacheGroup,
    HeadsCache,
    IndexCache,
    LatentCache,
    WeightFormat,
)
from trimaran.kernels.dequantise import dequantise
from trimaran.kernels.native_core import _native
from trimaran.kernels.native_lowering import GATED, FusedExperts, FusedLinear, Lowered, Slots, lower, plan_slots
from trimaran.kernels.native_weights import canonical_arrays, packed_bytes, packed_matrices
from trimaran.kernels.packed_weights import Packed
from trimaran.kernels.prefill_ops import programs_of
from trimaran.kernels.program import (
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
    Program,
    QueryScale,
    RmsNorm,
    RopeSpec,
    Route,
    SelectTokens,
    TakeRows,
    Tanh,
)
from trimaran.kernels.rope import query_scales, rope_table
from trimaran.kernels.step import ExecutorOptions
from trimaran.kernels.weights import ReadWeight, Weight

NONE = -1  # the core's "no such part"


class Assembly:
    """Builds the core of one executor: memory first, then op by op.

    With ``packed``, which an assembly of an equal program, options and instruction set has made, weights need have no
    numbers and nothing is packed. Else numbers are taken from what ``read`` gives, and left before the next are read.
    """

    def __init__(
        self,
        program: Program,
        weights: Mapping[str, Weight],
        options: ExecutorOptions,
        isa: str,
        threads: int,
        read: ReadWeight,
        packed: Packed | None = None,
    ) -> None:
        self._weights = weights
        self._read = read
        self._packed = packed
        self._outlier_rows: dict[str, int] = {}
        self._int8 = options.activations is ActivationFormat.INT8
        lists = [lower(each) for each in programs_of(program)]
        ops = [op for each in lists for op in each]
        gated = [op for op in ops if isinstance(op, FusedLinear) and op.epilogue in GATED.values()]
        experts = [op.op for op in ops if isinstance(op, FusedExperts)]
        self._stacks = {name: op.experts for op in experts for name in (op.gate_up, op.down)}
        self._stacks |= {op.weight: op.heads for op in ops if isinstance(op, HeadLinear)}  # matrices in a stack
        self._paired = {name for op in gated for name in (op.weight, op.bias)} | {op.gate_up for op in experts}
        linears = [op for op in ops if isinstance(op, FusedLinear)]
        self._heads = {id(weights[op.weight]) for op in linears if self._makes_logits_of_int8(op)}
        self._matrices: dict[tuple[int, bool], int] = {}  # by weight object: a tied matrix is packed once
        self._vectors: dict[str, int] = {}
        self._ropes: dict[tuple[RopeSpec, QueryScale | None], int] = {}
        whole = [options.pages_of(g) for g, group in enumerate(program.groups) if group.window is None]
        self._positions = min([program.context, *(pages * options.page_size for pages in whole)])
        self.core = _native.Program(
            isa=isa,
            threads=threads,
            vocab=program.vocab,
            result=program.result,
            max_rows=options.max_rows,
            max_sequences=options.max_sequences,
            page_size=options.page_size,
            max_positions=self._positions,
            int8_activations=self._int8,
            kv_format=options.kv_format,
            weight_bytes=self._weight_bytes(program) if packed is None else len(packed.memory),
            share_prefixes=options.share_prefixes,
            packed=None if packed is None else packed.memory,
        )
        self._head_caches: dict[int, int] = {}  # by group, the core's caches of each kind
        self._latent_caches: dict[int, int] = {}
        self._index_caches: dict[int, int] = {}
        for number, group in enumerate(program.groups):
            self._add_group(number, group, options)
        self._slots: Slots = plan_slots(lists[0])  # the lists are alike and never run at the same time
        self._buffers = [self.core.add_buffer(width, logits_rows) for width, logits_rows in self._slots.shapes]
        for number, each in enumerate(lists):
            if number:
                self.core.begin_prefill_ops()
            previous: Lowered | None = None
            for op in each:
                self._add(op, previous)
                previous = op
        self.core.finish()

    @property
    def packed(self) -> Packed:
        """What another assembly need not pack again; the core's memory, while it lives."""
        return Packed(self.core.weights_view(), self._outlier_rows)

    def _add_group(self, number: int, group: CacheGroup, options: ExecutorOptions) -> None:
        self.core.add_group(options.pages_of(number), group.window or 0)
        for cache in group.caches:
            match cache:
                case HeadsCache():
                    added = self.core.add_heads_cache(
                        number, cache.layers, cache.kv_heads, cache.head_dim, list(cache.wide)
                    )
                    for scales in options.kv_scales:
                        if (of_group := scales.groups[number]) is not None:
                            self.core.set_scales(added, scales.fmt, np.ascontiguousarray(of_group))
                    self._head_caches[number] = added
                case LatentCache():
                    added = self.core.add_latent_cache(number, cache.layers, cache.latent, cache.rope)
                    self._latent_caches[number] = added
                case IndexCache():
                    self._index_caches[number] = self.core.add_index_cache(number, cache.layers, cache.dim)

    def _weight_bytes(self, program: Program) -> int:
        sizes = {}
        for name in program.weights:
            weight, paired = self._weights[name], name in self._paired
            head, count = id(weight) in self._heads, self._stacks.get(name, 1)
            sizes[id(weight), paired] = packed_bytes(weight, count, paired=paired, head=head)
        return sum(sizes.values())

    def _buffer(self, buffer: Buffer) -> int:
        return self._buffers[self._slots.of[buffer]]

    def _matrix(self, name: str) -> int:
        """The core's number of a matrix, or of a stack of experts' matrices."""
        weight, paired = self._weights[name], name in self._paired
        key = (id(weight), paired)
        if key not in self._matrices:
            canonical = self._numbers(name)
            if name in self._stacks:
                self._matrices[key] = self.core.add_experts(canonical, paired)
            else:
                self._matrices[key] = self.core.add_matrix(canonical, paired, id(weight) in self._heads)
        return self._matrices[key]

    def _numbers(self, name: str) -> _native.Weight:
        weight, count = self._weights[name], self._stacks.get(name, 1)
        if self._packed is not None:
            return packed_matrices(weight, count, self._packed.outlier_rows.get(name))
        if weight.outliers is not None:
            rows = weight.shape[0] // count
            self._outlier_rows[name] = _native.outlier_rows(count, rows, name in self._paired, weight.outliers.starts)
        return canonical_arrays(self._read(name), count)

    def _vector(self, name: str | None) -> int:
        if name is None:
            return NONE
        if name not in self._vectors:
            shape = self._weights[name].shape
            values = dequantise(self._read(name)) if self._packed is None else np.zeros(shape, np.float32)
            self._vectors[name] = self.core.add_vector(values, name in self._paired)
        return self._vectors[name]

    def _rope(self, spec: RopeSpec, query_scale: QueryScale | None) -> int:
        if (spec, query_scale) not in self._ropes:
            scales = None if query_scale is None else query_scales(query_scale, np.arange(self._positions))
            self._ropes[spec, query_scale] = self.core.add_rope(*rope_table(spec, self._positions), scales)
        return self._ropes[spec, query_scale]

    def _head_norm(self, norm: HeadNorm | None) -> _native.HeadNorm:
        if norm is None:
            return _native.HeadNorm(NONE, 0.0, whole=False)
        return _native.HeadNorm(self._vector(norm.weight), norm.eps, norm.whole)

    def _add(self, op: Lowered, previous: Lowered | None) -> None:
        match op:
            case Embed():
                self.core.embed(self._buffer(op.out), self._matrix(op.weight), op.scale, op.index)
            case RmsNorm():
                self.core.rms_norm(self._buffer(op.out), self._buffer(op.x), self._vector(op.weight), op.eps)
            case LayerNorm():
                weight, bias = self._vector(op.weight), self._vector(op.bias)
                self.core.layer_norm(self._buffer(op.out), self._buffer(op.x), weight, bias, op.eps)
            case FusedLinear():
                self._add_linear(op, previous)
            case Attention():
                self.core.attention(
                    out=self._buffer(op.out),
                    qkv=self._buffer(op.qkv),
                    cache=self._head_caches[op.group],
                    layer=op.layer,
                    heads=op.heads,
                    rope=self._rope(op.rope, op.query_scale),
                    scale=op.scale,
                    q_norm=self._head_norm(op.q_norm),
                    k_norm=self._head_norm(op.k_norm),
                    causal=op.causal,
                )
            case Glu():
                self.core.glu(self._buffer(op.out), self._buffer(op.gate_up), GATED[op.activation])
            case Gelu():
                self.core.gelu(self._buffer(op.out), self._buffer(op.x))
            case Tanh():
                self.core.tanh(self._buffer(op.out), self._buffer(op.x))
            case Add():
                self.core.add(self._buffer(op.out), self._buffer(op.a), self._buffer(op.b))
            case TakeRows():
                self.core.take_rows(self._buffer(op.out), self._buffer(op.x))
            case MeanRows():
                self.core.mean_rows(self._buffer(op.out), self._buffer(op.x))
            case Logits():
                self.core.logits(self._buffer(op.x))
            case Route():
                self.core.route(
                    out=self._buffer(op.out),
                    logits=self._buffer(op.logits),
                    bias=self._vector(op.bias),
                    experts=op.logits.width,
                    top_k=op.top_k,
                    scoring=op.scoring,
                    groups=op.groups,
                    top_groups=op.top_groups,
                    normalise=op.normalise,
                    epsilon=op.epsilon,
                    factor=op.factor,
                )
            case FusedExperts():
                self.core.experts(
                    out=self._buffer(op.out),
                    x=self._buffer(op.x),
                    routes=self._buffer(op.routes),
                    gate_up=self._matrix(op.op.gate_up),
                    down=self._matrix(op.op.down),
                    top_k=op.routes.width // 2,
                    norm=NONE if op.norm is None else self._vector(op.norm.weight),
                    eps=0.0 if op.norm is None else op.norm.eps,
                    residual=NONE if op.residual is None else self._buffer(op.residual),
                )
            case HeadLinear():
                self.core.head_linear(self._buffer(op.out), self._buffer(op.x), self._matrix(op.weight))
            case LatentAttention():
                self.core.latent_attention(
                    out=self._buffer(op.out),
                    q_latent=self._buffer(op.q_latent),
                    q=self._buffer(op.q),
                    kv=self._buffer(op.kv),
                    selected=NONE if op.selected is None else self._buffer(op.selected),
                    cache=self._latent_caches[op.group],
                    layer=op.layer,
                    heads=op.heads,
                    latent=op.latent,
                    rope=self._rope(op.rope, None),
                    norm=self._vector(op.norm),
                    scale=op.scale,
                    eps=op.eps,
                )
            case SelectTokens():
                self.core.select_tokens(
                    out=self._buffer(op.out),
                    q=self._buffer(op.q),
                    k=self._buffer(op.k),
                    weights=self._buffer(op.weights),
                    cache=self._index_caches[op.group],
                    layer=op.layer,
                    heads=op.heads,
                    rope=self._rope(op.rope, None),
                    norm=self._vector(op.norm),
                    norm_bias=self._vector(op.norm_bias),
                    eps=op.eps,
                )
            case Linear() | Experts():
                raise AssertionError("lowering leaves no plain product")

    def _add_linear(self, op: FusedLinear, previous: Lowered | None) -> None:
        same = isinstance(previous, FusedLinear) and op.same_input(previous)
        reuse = same and isinstance(previous, FusedLinear) and self._prepares(op) == self._prepares(previous)
        self.core.linear(
            out=NONE if op.epilogue == "logits" else self._buffer(op.out),
            x=self._buffer(op.x),
            weight=self._matrix(op.weight),
            bias=self._vector(op.bias),
            norm=NONE if op.norm is None else self._vector(op.norm.weight),
            eps=0.0 if op.norm is None else op.norm.eps,
            gather=op.gather,
            epilogue=op.epilogue,
            residual=NONE if op.residual is None else self._buffer(op.residual),
            gather_residual=op.gather_residual,
            wide=op.wide and self._quantises(op),
            reuse=reuse,
        )

    def _makes_logits_of_int8(self, op: FusedLinear) -> bool:
        return op.epilogue == "logits" and self._weights[op.weight].fmt is WeightFormat.INT8 and self._quantises(op)

    def _prepares(self, op: FusedLinear) -> tuple[bool, bool]:
        """As what the input is wanted: as integers, and as what they stand for."""
        return self._quantises(op), self._weights[op.weight].outliers is not None

    def _quantises(self, op: FusedLinear) -> bool:
        return self._int8 and self._weights[op.weight].fmt.integer
