"""Runs programs in NumPy, op by op: slow and obvious. Also what serves where no compiler is."""

import os
from collections.abc import Mapping, Sequence

import ml_dtypes
import numpy as np

from trimaran.base.formats import ActivationFormat, KVFormat
from trimaran.kernels import reference_ops as ops
from trimaran.kernels.dequantise import dequantise
from trimaran.kernels.program import (
    Add,
    Attention,
    Buffer,
    Embed,
    Linear,
    Logits,
    Op,
    Program,
    RmsNorm,
    SwiGLU,
    TakeRows,
)
from trimaran.kernels.reference_ops import Array
from trimaran.kernels.rope import rope_table
from trimaran.kernels.step import ExecutorOptions, Float32, InOnePiece, StepInputs, StepOutputs
from trimaran.kernels.validate import check_options, check_step, check_weights
from trimaran.kernels.weights import Weight

Buffers = dict[Buffer, Array]

_PAGE_TYPES = {KVFormat.FP32: np.float32, KVFormat.BF16: ml_dtypes.bfloat16, KVFormat.INT8: np.int8}


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
        check_weights(program, weights)
        self.threads = len(os.sched_getaffinity(0))
        self.num_pages = options.num_pages
        self.page_size = options.page_size
        self._program = program
        self._options = options
        self._compute = compute
        used = {id(weights[name]): weights[name] for name in program.weights}  # a tied matrix counts once
        self.weight_bytes = sum(_bytes(weight) for weight in used.values())
        dense = {key: dequantise(weight).astype(compute, copy=False) for key, weight in used.items()}
        self._weights = {name: dense[id(weights[name])] for name in program.weights}
        self._quantised = frozenset(name for name in program.weights if weights[name].fmt.quantised)
        ropes = {op.rope for op in program.ops if isinstance(op, Attention)}
        self._ropes = {spec: rope_table(spec, program.context) for spec in ropes}
        cache = program.cache
        shape = (options.num_pages, cache.layers, 2, options.page_size, cache.kv_heads, cache.head_dim)
        self._pages: Array = np.zeros(shape, _PAGE_TYPES[options.kv_format])
        self._int8_pages = options.kv_format is KVFormat.INT8
        self._scales: Array = np.zeros(shape[:-1] if self._int8_pages else 0, np.float32)
        self.kv_bytes = self._pages.nbytes + self._scales.nbytes
        self._last_reads = _last_reads(program.ops)

    def run(self, step: StepInputs) -> StepOutputs:
        """See ``Executor.run``; raises ``ValueError`` on a step that breaks the contract of ``StepInputs``."""
        check_step(step, self._program, self._options)
        buffers: Buffers = {}
        for op, dead in zip(self._program.ops, self._last_reads, strict=True):
            if isinstance(op, Logits):
                logits: Float32 = buffers[op.x].astype(np.float32)
                greedy = np.where(np.isfinite(logits.max(axis=-1)), logits.argmax(axis=-1), -1).astype(np.int32)
                return StepOutputs(greedy, logits if step.want_logits else None)
            buffers[op.out] = self._apply(op, buffers, step)
            for buffer in dead:
                del buffers[buffer]
        raise AssertionError("a program ends with logits")

    def close(self) -> None:
        """Drops weights and pages."""
        self._weights = {}
        self._pages = np.zeros(0, self._pages.dtype)
        self._scales = np.zeros(0, np.float32)

    def _apply(self, op: Op, buffers: Buffers, step: StepInputs) -> Array:
        match op:
            case Embed():
                return self._weights[op.weight][step.tokens]
            case RmsNorm():
                return ops.rms_norm(buffers[op.x], self._weights[op.weight], op.eps)
            case Linear():
                x = buffers[op.x]
                if op.weight in self._quantised and self._options.activations is ActivationFormat.INT8:
                    x = ops.through_int8(x, wide=op.wide)
                return ops.linear(x, self._weights[op.weight], None if op.bias is None else self._weights[op.bias])
            case Attention():
                return self._attention(op, buffers[op.qkv], step)
            case SwiGLU():
                return ops.swiglu(buffers[op.gate_up])
            case Add():
                return buffers[op.a] + buffers[op.b]
            case TakeRows():
                return buffers[op.x][step.logits_rows]
            case Logits():
                raise AssertionError("run returns at logits")

    def _attention(self, op: Attention, qkv: Array, step: StepInputs) -> Array:
        heads = qkv.reshape(len(qkv), -1, op.head_dim)
        q, k, v = np.split(heads, [op.heads, op.heads + op.kv_heads], axis=1)
        out = np.empty_like(q)
        cos_table, sin_table = self._ropes[op.rope]
        for i, context in enumerate(step.contexts.tolist()):
            rows = slice(step.starts[i], step.starts[i + 1])
            positions = np.arange(context, context + rows.stop - rows.start)
            cos, sin = cos_table[positions].astype(self._compute), sin_table[positions].astype(self._compute)
            table = step.page_table[step.slots[i]]
            self._write(op.layer, 0, table, positions, ops.rotate(k[rows], cos, sin))
            self._write(op.layer, 1, table, positions, v[rows])
            tokens = context + len(positions)
            keys, key_scales = self._read(op.layer, 0, table, tokens)
            values, value_scales = self._read(op.layer, 1, table, tokens)
            for row, query, position in zip(out[rows], ops.rotate(q[rows], cos, sin), positions, strict=True):
                seen = slice(position + 1)
                if self._int8_pages:
                    scaled = keys[seen] * key_scales[seen, :, None]
                    row[:] = ops.attend_int8(query, scaled, values[seen], value_scales[seen], op.scale)
                else:
                    row[:] = ops.attend(query, keys[seen], values[seen], op.scale)
        return out.reshape(len(qkv), -1)

    def _write(self, layer: int, part: int, table: Array, positions: Array, heads: Array) -> None:
        """Writes keys (``part`` 0) or values (1) ``[rows, kv_heads, head_dim]`` in page format."""
        at = (table[positions // self.page_size], layer, part, positions % self.page_size)
        if self._int8_pages:
            heads, scales = ops.to_int8(ops.hadamard(heads) if part == 0 else heads)
            self._scales[at] = scales
        self._pages[at] = heads.astype(self._pages.dtype)

    def _read(self, layer: int, part: int, table: Array, tokens: int) -> tuple[Array, Array]:
        """Keys or values ``[tokens, kv_heads, head_dim]`` in page format widened to the compute type, and the scales
        ``[tokens, kv_heads]`` of int8."""
        pages = table[: -(-tokens // self.page_size)]
        heads = self._pages[pages, layer, part].astype(self._compute)  # [pages, page_size, kv_heads, head_dim]
        heads = heads.reshape(-1, *heads.shape[2:])[:tokens]
        if not self._int8_pages:
            return heads, self._scales
        scales = self._scales[pages, layer, part].astype(self._compute)
        return heads, scales.reshape(-1, scales.shape[-1])[:tokens]


def _bytes(weight: Weight) -> int:
    return sum(array.nbytes for array in (weight.data, weight.scale, weight.minimum) if array is not None)


def _last_reads(program_ops: Sequence[Op]) -> list[list[Buffer]]:
    """For each op, the buffers that nothing reads after it."""
    last: dict[Buffer, int] = {}
    for index, op in enumerate(program_ops):
        for value in vars(op).values():
            if isinstance(value, Buffer):
                last[value] = index
    return [[buffer for buffer, at in last.items() if at == index] for index in range(len(program_ops))]
