"""A float32 forward over a few texts that holds one matrix at a time: it asks for each with what it is multiplied with.

Texts run side by side and whole, without pages: keys and values are those of the text itself. Sums are BLAS's, so that
results are near those of the reference executor, not the same bits. Memory: the activations of all rows, the scores
of one group of heads over one text, and the matrix.
"""

import itertools
from collections.abc import Iterator, MutableMapping, Sequence
from typing import Protocol

import numpy as np

from trimaran.base.errors import UnsupportedError
from trimaran.kernels import reference_latent
from trimaran.kernels import reference_ops as ops
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
from trimaran.kernels.reference import last_reads
from trimaran.kernels.rope import query_scales, rope_table
from trimaran.kernels.step import Float32


class Weights(Protocol):
    """Where the forward takes a program's weights from."""

    def vector(self, name: str) -> Float32:
        """A norm's weight or a bias."""
        ...

    def table_rows(self, name: str, ids: Sequence[int]) -> Float32:
        """Rows ``[len(ids), hidden]`` of the embedding."""
        ...

    def matrix(self, name: str, rows: slice, inputs: Float32) -> Float32:
        """``rows`` of a matrix, which are about to be multiplied with ``inputs`` ``[tokens, columns]``.

        Asked once for each matrix, in the program's order; of experts once for each, also where no token was routed to
        it (``inputs`` has no rows then). ``inputs`` of the two matrices that are made from ``kv_b_proj`` are the normed
        latents, which that tensor is multiplied with in a forward that does not absorb it.
        """
        ...


class Forward:
    """The state of ``texts`` on their way through ``program``: apply its ops in order, or ``run`` them all."""

    def __init__(
        self,
        program: Program,
        weights: Weights,
        texts: Sequence[Sequence[int]],
        buffers: MutableMapping[Buffer, Float32] | None = None,
    ) -> None:
        """``buffers``: where activations are put, in memory unless told otherwise."""
        self.program = program
        self.buffers: MutableMapping[Buffer, Float32] = {} if buffers is None else buffers
        self._weights = weights
        self._tokens = [token for text in texts for token in text]
        ends = [0, *itertools.accumulate(map(len, texts))]
        self._texts = [slice(start, end) for start, end in itertools.pairwise(ends)]
        longest = max(map(len, texts), default=0)
        ropes = {op.rope for op in program.ops if isinstance(op, Attention | LatentAttention | SelectTokens)}
        self._ropes = {spec: rope_table(spec, longest) for spec in ropes}
        # the latent attention on either side of a matrix that is made from kv_b_proj
        attention = [op for op in program.ops if isinstance(op, LatentAttention)]
        self._around = {buffer: op for op in attention for buffer in (op.q_latent, op.out)}
        self._latents: Float32 = np.zeros((0, 0), np.float32)
        pairs = zip(program.ops, last_reads(program.ops), strict=True)
        self._dead = {op.out: dead for op, dead in pairs if not isinstance(op, Logits)}

    def run(self, *, logits: bool = False) -> Float32:
        """What the last layer makes ``[tokens, hidden]``; with ``logits`` those of every token ``[tokens, vocab]``."""
        for op in self.program.ops:
            if isinstance(op, Logits) or (isinstance(op, TakeRows) and not logits):
                return self.buffers[op.x]
            self.apply(op)
        raise AssertionError("a program ends with logits")

    def body(self) -> Iterator[Op]:
        """The ops of all layers: what ``run`` does without logits."""
        return itertools.takewhile(lambda op: not isinstance(op, Logits | TakeRows), self.program.ops)

    def apply(self, op: Op) -> None:
        """Does one op, and drops what nothing reads any more."""
        assert not isinstance(op, Logits), "logits are the end"
        self.buffers[op.out] = self._apply(op)
        for buffer in self._dead[op.out]:
            del self.buffers[buffer]

    def _apply(self, op: Op) -> Float32:
        b, w = self.buffers, self._weights
        match op:
            case Embed():
                return w.table_rows(op.weight, self._tokens) * np.float32(op.scale)
            case RmsNorm():
                return ops.rms_norm(b[op.x], w.vector(op.weight), op.eps)
            case Linear():
                out = b[op.x] @ self._whole(op.weight, b[op.x]).T
                return out if op.bias is None else out + w.vector(op.bias)
            case Attention():
                return self._attention(op, b[op.qkv])
            case Glu():
                return ops.glu(b[op.gate_up], op.activation)
            case Add():
                return b[op.a] + b[op.b]
            case TakeRows():
                return b[op.x]
            case Route():
                return ops.route(b[op.logits], None if op.bias is None else w.vector(op.bias), op)
            case Experts():
                return self._experts(op, b[op.x], b[op.routes])
            case HeadLinear():
                return self._head_linear(op, b[op.x])
            case LatentAttention():
                return self._latent_attention(op)
            case SelectTokens():
                return self._select(op, b[op.q], b[op.k], b[op.weights])
            case Logits():
                raise AssertionError("logits are the end")
            case LayerNorm() | Gelu() | Tanh() | MeanRows():
                raise UnsupportedError(f"an encoder ({self.program.family}) cannot be calibrated")

    def _whole(self, name: str, inputs: Float32) -> Float32:
        return self._weights.matrix(name, slice(0, self.program.weights[name].shape[0]), inputs)

    def _experts(self, op: Experts, x: Float32, routes: Float32) -> Float32:
        chosen, shares = np.split(routes, 2, axis=1)
        out = np.zeros_like(x)
        for expert in range(op.experts):
            rows, place = np.nonzero(chosen == expert)
            gate_up = slice(expert * 2 * op.width, (expert + 1) * 2 * op.width)
            down = slice(expert * x.shape[1], (expert + 1) * x.shape[1])
            inner = ops.glu(x[rows] @ self._weights.matrix(op.gate_up, gate_up, x[rows]).T, op.activation)
            y = inner @ self._weights.matrix(op.down, down, inner).T
            out[rows] += shares[rows, place, None] * y
        return out

    def _attention(self, op: Attention, qkv: Float32) -> Float32:
        heads = qkv.reshape(len(qkv), -1, op.head_dim)
        q, k, v = np.split(heads, [op.heads, op.heads + op.kv_heads], axis=1)
        q, k = self._head_norm(q, op.q_norm), self._head_norm(k, op.k_norm)
        out = np.empty(q.shape, np.float32)
        shared = op.heads // op.kv_heads
        for text in self._texts:
            cos, sin = self._rope(op, text)
            queries, keys = ops.rotate(q[text], cos, sin), ops.rotate(k[text], cos, sin)
            queries *= np.float32(op.scale)
            if op.query_scale is not None:
                queries *= query_scales(op.query_scale, np.arange(len(keys)))[:, None, None]
            hidden = _unseen(len(keys), op.window)
            for kv_head in range(op.kv_heads):
                group = slice(kv_head * shared, (kv_head + 1) * shared)
                scores = queries[:, group].swapaxes(0, 1) @ keys[:, kv_head].T  # [group, tokens, tokens]
                out[text, group] = (_softmax(scores, hidden) @ v[text, kv_head]).swapaxes(0, 1)
        return out.reshape(len(qkv), -1)

    def _head_norm(self, heads: Float32, norm: HeadNorm | None) -> Float32:
        if norm is None:
            return heads
        rows = heads.reshape(len(heads), -1) if norm.whole else heads
        return ops.rms_norm(rows, self._weights.vector(norm.weight), norm.eps).reshape(heads.shape)

    def _head_linear(self, op: HeadLinear, x: Float32) -> Float32:
        if op.out in self._around:
            attention = self._around[op.out]
            latents = self.buffers[attention.kv][:, : attention.latent]
            self._latents = ops.rms_norm(latents, self._weights.vector(attention.norm), attention.eps)
        matrices = self._whole(op.weight, self._latents).reshape(op.heads, -1, op.inputs)
        shares = x.reshape(len(x), op.heads, -1)[..., : op.inputs]
        return (shares.swapaxes(0, 1) @ matrices.swapaxes(1, 2)).swapaxes(0, 1).reshape(len(x), -1)

    def _latent_attention(self, op: LatentAttention) -> Float32:
        b = self.buffers
        out = np.empty((len(b[op.q]), op.heads, op.latent), np.float32)
        for text in self._texts:
            cos, sin = self._rope(op, text)
            keys = ops.rotate(b[op.kv][text, None, op.latent :], cos, sin)[:, 0]
            tokens = np.concatenate([self._latents[text], keys], axis=1)
            parts = b[op.q][text].reshape(len(tokens), op.heads, -1)[..., -op.rope.dims :]
            shares = b[op.q_latent][text].reshape(len(tokens), op.heads, -1)
            queries = np.concatenate([shares, ops.rotate(parts, cos, sin)], axis=-1) * np.float32(op.scale)
            hidden = _unseen(len(tokens), None) if op.selected is None else _unselected(b[op.selected][text])
            for head in range(op.heads):
                out[text, head] = _softmax(queries[:, head] @ tokens.T, hidden) @ self._latents[text]
        return out.reshape(len(out), -1)

    def _select(self, op: SelectTokens, q: Float32, k: Float32, weights: Float32) -> Float32:
        k = ops.layer_norm(k, self._weights.vector(op.norm), self._weights.vector(op.norm_bias), op.eps)
        out = np.full((len(q), op.top_k), -1, np.float32)
        for text in self._texts:
            cos, sin = self._rope(op, text)
            keys = ops.rotate(k[text, None], cos, sin)[:, 0]
            queries = ops.rotate(q[text].reshape(len(keys), op.heads, op.dim), cos, sin)
            for row, query, position in zip(range(text.start, text.stop), queries, range(len(keys)), strict=True):
                scores = reference_latent.index_scores(query, keys[: position + 1], weights[row])
                chosen = reference_latent.largest(scores, op.top_k)
                out[row, : len(chosen)] = chosen
        return out

    def _rope(self, op: Attention | LatentAttention | SelectTokens, text: slice) -> Iterator[Float32]:
        """Cosines and sines of the text's positions."""
        return (part[: text.stop - text.start] for part in self._ropes[op.rope])


def _unseen(tokens: int, window: int | None) -> np.ndarray:
    """True where the row's token does not see the column's."""
    rows, columns = np.ogrid[:tokens, :tokens]
    hidden = columns > rows
    return hidden if window is None else hidden | (columns <= rows - window)


def _unselected(selected: Float32) -> np.ndarray:
    """As ``_unseen``, from lists of positions that end in -1."""
    hidden = np.ones((len(selected), len(selected) + 1), bool)
    np.put_along_axis(hidden, selected.astype(int), values=False, axis=1)  # -1 falls into the column too many
    return hidden[:, :-1]


def _softmax(scores: Float32, hidden: np.ndarray) -> Float32:
    """Along the last axis, in place."""
    scores[..., hidden] = -np.inf
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores
