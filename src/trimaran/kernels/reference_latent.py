"""The arithmetic of latent attention and of an indexer; like that in ``reference_ops.py`` functions of NumPy arrays."""

import numpy as np

from trimaran.kernels.reference_ops import Array


def head_linear(x: Array, weight: Array, heads: int) -> Array:
    """``out[h] = x[h, :inputs] @ weight[h].T`` for ``x`` ``[rows, width]`` and ``weight`` ``[heads * n, inputs]``."""
    matrices = weight.reshape(heads, -1, weight.shape[1])
    shares = x.reshape(len(x), heads, -1)[..., : weight.shape[1]]
    out = np.empty((len(x), heads, matrices.shape[1]), x.dtype)
    for share, result in zip(shares, out, strict=True):
        np.matmul(matrices, share[..., None], out=result[..., None])
    return out.reshape(len(x), -1)


def attend_latents(q: Array, tokens: Array, latent: int, scale: float) -> Array:
    """Attention of one row: ``q`` ``[heads, width]`` over ``tokens`` ``[tokens, width]``, whose first ``latent`` values
    are gathered. The result is ``[heads, latent]``."""
    scores = q @ tokens.T * scale
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    out: Array = weights @ tokens[:, :latent]
    return out


def index_scores(q: Array, keys: Array, weights: Array) -> Array:
    """Scores of an indexer for one row: ``q`` ``[heads, dim]``, ``keys`` ``[tokens, dim]``, ``weights`` ``[heads]``."""
    heads, dim = q.shape
    products = np.maximum(q @ keys.T * dim**-0.5, 0)
    scores: Array = (weights * heads**-0.5) @ products
    return scores


def largest(scores: Array, count: int) -> Array:
    """Positions of the ``count`` largest ``scores``, or of all, ascending; of equal ones the lower. NaN is least."""
    best = np.argsort(-scores, kind="stable")[:count]  # NaN comes last
    return np.sort(best)
