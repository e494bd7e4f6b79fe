"""Runs programs in NumPy, op by op: slow and obvious. Also what serves where no compiler is."""

import os
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from trimaran.base.formats import ActivationFormat, HeadsCache, IndexCache, KVFormat, LatentCache, hadamard_width
from trimaran.kernels import reference_latent
from trimaran.kernels import reference_ops as ops
from trimaran.kernels.dequantise import dequantise
from trimaran.kernels.page_tags import PageGuard
from trimaran.kernels.prefill_ops import Part, parts_of, programs_of
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
    Op,
    Program,
    RmsNorm,
    Route,
    SelectTokens,
    TakeRows,
    Tanh,
)
from trimaran.kernels.reference_ops import Array
from trimaran.kernels.reference_pages import KEYS, VALUES, CachePages, HeadsPages, IndexPages, LatentPages
from trimaran.kernels.rope import query_scales, rope_table
from trimaran.kernels.step import ExecutorOptions, Float32, InOnePiece, Int32, StepInputs, StepOutputs, UInt8
from trimaran.kernels.validate import check_options, check_pages, check_step, check_weights
from trimaran.kernels.weights import Weight

Buffers = dict[Buffer, Array]


class ReferenceExecutor(InOnePiece):
    """The executor that defines what a program means. ``compute`` is the type of all arithmetic.

    Weights are dequantised once. Int8 activations are modelled as what they stand for: rounded, then multiplied in
    ``compute``. NumPy's BLAS chooses its own threads; ``options.threads`` is for executors that have a thread team.
    """

    name = "reference"
    isa = "numpy"

    def __init__(
        self,
        program: Program,
        weights: Mapping[str, Weight],
        options: ExecutorOptions,
        compute: type[np.float32] | type[np.float64] = np.float32,
    ) -> None:
        check_options(options)
        check_pages(program, options)
        check_weights(program, weights)
        self.threads = len(os.sched_getaffinity(0))
        self.num_pages = tuple(map(options.pages_of, range(len(program.groups))))
        self.page_size = options.page_size
        self.layout = options.layout(self.name, program.groups)
        windows = tuple(group.window for group in program.groups)
        self._guard = PageGuard(self.num_pages, windows, options.page_size, options.page_tags)
        self.page_tags = self._guard.tags
        self._program = program
        self._options = options
        self._compute = compute
        used = {id(weights[name]): weights[name] for name in program.weights}  # a tied matrix counts once
        self.weight_bytes = sum(weight.nbytes for weight in used.values())
        dense = {key: dequantise(weight).astype(compute, copy=False) for key, weight in used.items()}
        self._weights = {name: dense[id(weights[name])] for name in program.weights}
        self._integer = frozenset(name for name in program.weights if weights[name].fmt.integer)
        ropes = {op.rope for op in program.ops if isinstance(op, Attention | LatentAttention | SelectTokens)}
        self._ropes = {spec: rope_table(spec, program.context) for spec in ropes}
        self._heads: dict[int, HeadsPages] = {}  # by group, as the others
        self._latents: dict[int, LatentPages] = {}
        self._indices: dict[int, IndexPages] = {}
        self._pages: list[list[CachePages]] = [[] for _ in program.groups]  # all of them, by group
        for g, group in enumerate(program.groups):
            for cache in group.caches:
                match cache:
                    case HeadsCache():
                        self._heads[g] = HeadsPages(cache, g, options.pages_of(g), options, compute)
                        self._pages[g].append(self._heads[g])
                    case LatentCache():
                        self._latents[g] = LatentPages(cache, g, options.pages_of(g), options, compute)
                        self._pages[g].append(self._latents[g])
                    case IndexCache():
                        self._indices[g] = IndexPages(cache, g, options.pages_of(g), options, compute)
                        self._pages[g].append(self._indices[g])
        self.kv_bytes = sum(pages.nbytes for caches in self._pages for pages in caches)
        self._lists = [(each.ops, last_reads(each.ops)) for each in programs_of(program)]

    def run(self, step: StepInputs) -> StepOutputs:
        """See ``Executor.run``; raises ``ValueError`` on a step that breaks the contract of ``StepInputs``."""
        step, faulty = self._guard.admit(step)
        check_step(step, self._program, self._options)
        parts = parts_of(step) if self._program.prefill_ops else (Part(step),)
        logits: Float32 = np.concatenate([self._walk(part) for part in parts])
        greedy = np.where(np.isfinite(logits.max(axis=-1)), logits.argmax(axis=-1), -1).astype(np.int32)
        return StepOutputs(greedy, logits if step.want_logits else None, faulty)

    def _walk(self, part: Part) -> Float32:
        """The logits of a part of a step."""
        buffers: Buffers = {}
        for op, dead in zip(*self._lists[part.prefill], strict=True):
            if isinstance(op, Logits):
                return buffers[op.x].astype(np.float32)
            buffers[op.out] = self._apply(op, buffers, part.step)
            for buffer in dead:
                del buffers[buffer]
        raise AssertionError("a program ends with logits")

    def export_pages(self, group: int, pages: Int32, page_format: KVFormat, out: UInt8 | None = None) -> UInt8:
        """See ``Executor.export_pages``."""
        assert self._started is None, "a step is running"
        self.layout.check_pages(self.num_pages, group, pages)
        self.layout.converted(page_format).page_bytes(group)  # refuses a format that the group cannot have
        return np.concatenate([cache.export(pages, page_format) for cache in self._pages[group]], axis=1, out=out)

    def import_pages(self, group: int, pages: Int32, data: UInt8) -> None:
        """See ``Executor.import_pages``."""
        assert self._started is None, "a step is running"
        self.layout.check_import(self.num_pages, group, pages, data)
        first = 0
        for cache in self._pages[group]:
            end = first + cache.page_bytes
            cache.fill(pages, data[:, first:end])
            first = end

    def close(self) -> None:
        """Drops weights and pages."""
        self._weights = {}
        self._heads, self._latents, self._indices, self._pages = {}, {}, {}, []

    def _apply(self, op: Op, buffers: Buffers, step: StepInputs) -> Array:
        match op:
            case Embed():
                rows: Array = self._weights[op.weight][_indices(op, step)] * np.asarray(op.scale, self._compute)
                return rows
            case RmsNorm():
                return ops.rms_norm(buffers[op.x], self._weights[op.weight], op.eps)
            case LayerNorm():
                return ops.layer_norm(buffers[op.x], self._weights[op.weight], self._weights[op.bias], op.eps)
            case Linear():
                x = self._rounded(buffers[op.x], op.weight, wide=op.wide)
                return ops.linear(x, self._weights[op.weight], None if op.bias is None else self._weights[op.bias])
            case Attention():
                out = self._attention(op, buffers[op.qkv], step)
                return out[step.logits_rows] if op.out.logits_rows else out
            case Glu():
                return ops.glu(buffers[op.gate_up], op.activation)
            case Gelu():
                return ops.gelu(buffers[op.x])
            case Tanh():
                return np.tanh(buffers[op.x])
            case Add():
                return buffers[op.a] + buffers[op.b]
            case TakeRows():
                return buffers[op.x][step.logits_rows]
            case MeanRows():
                return _mean_rows(buffers[op.x], step)
            case Route():
                bias = None if op.bias is None else self._weights[op.bias]
                return ops.route(buffers[op.logits], bias, op).astype(self._compute, copy=False)
            case Experts():
                return self._experts(op, buffers[op.x], buffers[op.routes])
            case HeadLinear():
                return reference_latent.head_linear(buffers[op.x], self._weights[op.weight], op.heads)
            case LatentAttention():
                selected = None if op.selected is None else buffers[op.selected]
                return self._latent_attention(op, buffers[op.q_latent], buffers[op.q], buffers[op.kv], selected, step)
            case SelectTokens():
                return self._select(op, buffers[op.q], buffers[op.k], buffers[op.weights], step)
            case Logits():
                raise AssertionError("run returns at logits")

    def _experts(self, op: Experts, x: Array, routes: Array) -> Array:
        gate_up = self._weights[op.gate_up].reshape(op.experts, -1, x.shape[1])
        down = self._weights[op.down].reshape(op.experts, -1, op.width)
        chosen, weights = np.split(routes, 2, axis=1)
        out = np.zeros_like(x)
        for expert in np.unique(chosen).astype(int).tolist():
            rows, place = np.nonzero(chosen == expert)
            h = ops.glu(ops.linear(self._rounded(x[rows], op.gate_up), gate_up[expert], None), op.activation)
            y = ops.linear(self._rounded(h, op.down), down[expert], None)
            out[rows] += weights[rows, place, None] * y
        return out

    def _rounded(self, x: Array, weight: str, *, wide: bool = False) -> Array:
        """``x`` as the layer with this weight sees it."""
        int8 = weight in self._integer and self._options.activations is ActivationFormat.INT8
        return ops.through_int8(x, wide=wide) if int8 else x

    def _attention(self, op: Attention, qkv: Array, step: StepInputs) -> Array:
        heads = qkv.reshape(len(qkv), -1, op.head_dim)
        q, k, v = np.split(heads, [op.heads, op.heads + op.kv_heads], axis=1)
        q, k = self._head_norm(q, op.q_norm), self._head_norm(k, op.k_norm)
        out = np.empty_like(q)
        pages = self._heads[op.group]
        fmt = pages.format_of(op.layer)
        group = fmt.values.value_group(op.head_dim)
        for rows, positions, table, cos, sin in self._sequences(op, step):
            context = int(positions[0])
            pages.write(op.layer, KEYS, table, positions, ops.rotate(k[rows], cos, sin))
            pages.write(op.layer, VALUES, table, positions, v[rows])
            queries = ops.rotate(q[rows], cos, sin)
            if op.query_scale is not None:
                queries *= query_scales(op.query_scale, positions).astype(self._compute)[:, None, None]
            first, end = first_seen(context, op.window), context + len(positions)
            keys, key_scales = pages.read(op.layer, KEYS, table, first, end)
            values, value_scales = pages.read(op.layer, VALUES, table, first, end)
            keys = keys * key_scales
            if fmt.integer:
                queries = ops.hadamard(queries, hadamard_width(fmt.keys, op.head_dim))
            else:
                values = values * value_scales
            for row, query, position in zip(out[rows], queries, positions.tolist(), strict=True):
                begin = first_seen(position, op.window)
                seen = slice(begin - first, (position + 1 if op.causal else end) - first)
                if fmt.integer:
                    row[:] = ops.attend_integers(
                        query, keys[seen], values[seen], value_scales[seen], op.scale, group, begin
                    )
                else:
                    row[:] = ops.attend(query, keys[seen], values[seen], op.scale)
        if fmt.turned_values:
            out = ops.hadamard(out, hadamard_width(fmt.values, op.head_dim))
        return out.reshape(len(qkv), -1)

    def _latent_attention(
        self, op: LatentAttention, q_latent: Array, q: Array, kv: Array, selected: Array | None, step: StepInputs
    ) -> Array:
        latents, keys = np.split(kv, [op.latent], axis=1)
        latents = ops.rms_norm(latents, self._weights[op.norm], op.eps)
        pages = self._latents[op.group]
        out = np.empty((len(q), op.heads, op.latent), q.dtype)
        for rows, positions, table, cos, sin in self._sequences(op, step):
            rotated = ops.rotate(keys[rows, None], cos, sin)[:, 0]
            pages.write(op.layer, table, positions, np.concatenate([latents[rows], rotated], axis=1))
            cached = pages.read(op.layer, table, positions[-1] + 1)
            parts = q[rows].reshape(len(positions), op.heads, -1)[..., -op.rope.dims :]
            shares = q_latent[rows].reshape(len(positions), op.heads, -1)
            queries = np.concatenate([shares, ops.rotate(parts, cos, sin)], axis=-1)
            for row, query, position in zip(range(rows.start, rows.stop), queries, positions, strict=True):
                seen = cached[: position + 1]
                if selected is not None:
                    seen = seen[selected[row][selected[row] >= 0].astype(int)]
                out[row] = reference_latent.attend_latents(query, seen, op.latent, op.scale)
        return out.reshape(len(q), -1)

    def _select(self, op: SelectTokens, q: Array, k: Array, weights: Array, step: StepInputs) -> Array:
        k = ops.layer_norm(k, self._weights[op.norm], self._weights[op.norm_bias], op.eps)
        pages = self._indices[op.group]
        out = np.full((len(q), op.top_k), -1, q.dtype)
        for rows, positions, table, cos, sin in self._sequences(op, step):
            pages.write(op.layer, table, positions, ops.rotate(k[rows, None], cos, sin)[:, 0])
            cached = pages.read(op.layer, table, positions[-1] + 1)
            queries = ops.rotate(q[rows].reshape(len(positions), op.heads, op.dim), cos, sin)
            for row, query, position in zip(range(rows.start, rows.stop), queries, positions, strict=True):
                scores = reference_latent.index_scores(query, cached[: position + 1], weights[row])
                chosen = reference_latent.largest(scores, op.top_k)
                out[row, : len(chosen)] = chosen
        return out

    def _sequences(
        self, op: Attention | LatentAttention | SelectTokens, step: StepInputs
    ) -> Iterator[tuple[slice, Array, Array, Array, Array]]:
        """Of each sequence its rows, their positions, its page table, and the rope's cosines and sines."""
        cos, sin = self._ropes[op.rope]
        for i, context in enumerate(step.contexts.tolist()):
            rows = slice(int(step.starts[i]), int(step.starts[i + 1]))
            at = np.arange(context, context + rows.stop - rows.start)
            table = step.page_tables[op.group][step.slots[i]]
            yield rows, at, table, cos[at].astype(self._compute), sin[at].astype(self._compute)

    def _head_norm(self, heads: Array, norm: HeadNorm | None) -> Array:
        if norm is None:
            return heads
        rows = heads.reshape(len(heads), -1) if norm.whole else heads
        return ops.rms_norm(rows, self._weights[norm.weight], norm.eps).reshape(heads.shape)


def _indices(op: Embed, step: StepInputs) -> Int32:
    """Which rows of its weight an embedding gives the rows of the step."""
    match op.index:
        case "token":
            return step.tokens
        case "position":
            lengths = np.diff(step.starts)
            return np.arange(len(step.tokens), dtype=np.int32) + np.repeat(step.contexts - step.starts[:-1], lengths)
        case "type":
            return np.zeros_like(step.tokens) if step.types is None else step.types


def _mean_rows(x: Array, step: StepInputs) -> Array:
    """``MeanRows``; the sum goes by ascending row."""
    sequences = np.searchsorted(step.starts, step.logits_rows, side="right") - 1
    out = np.empty((len(sequences), x.shape[1]), x.dtype)
    for mean, sequence in zip(out, sequences, strict=True):
        rows = x[step.starts[sequence] : step.starts[sequence + 1]]
        mean[:] = np.add.accumulate(rows)[-1] / x.dtype.type(len(rows))
    return out


def first_seen(position: int, window: int | None) -> int:
    """The first position that the row at ``position`` sees."""
    return 0 if window is None else max(0, position - window + 1)


def last_reads(program_ops: Sequence[Op]) -> list[list[Buffer]]:
    """For each op, the buffers that nothing reads after it."""
    last: dict[Buffer, int] = {}
    for index, op in enumerate(program_ops):
        for value in vars(op).values():
            if isinstance(value, Buffer):
                last[value] = index
    return [[buffer for buffer, at in last.items() if at == index] for index in range(len(program_ops))]
