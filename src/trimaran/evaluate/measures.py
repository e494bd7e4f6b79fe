"""How far two next-token distributions are apart. Figures of exactness here and in ``bench`` are made of it."""

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]


def log_softmax(logits: Float32) -> Float64:
    """Natural log of the softmax over the last axis, in float64."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    return wide


def divergence(p: Float64, q: Float64) -> Float64:
    """KL(p || q) in nats over the last axis, of log-probabilities."""
    return np.asarray(np.sum(np.exp(p) * (p - q), axis=-1), np.float64)


def same_top(ours: Float32, theirs: Float32) -> Bool:
    """Whether the likeliest token is the same, over the last axis; of two that are as likely the first counts."""
    return np.asarray(ours.argmax(axis=-1) == theirs.argmax(axis=-1))


def log_probability(logits: Float32, tokens: npt.NDArray[np.int64]) -> Float64:
    """Log-probability ``[rows, n]`` of ``tokens`` ``[rows, n]`` under ``logits`` ``[rows, vocab]``.

    Exponentials are fp32 and their sum float64: a tenth of the time of ``log_softmax``, right to about 1e-6.
    """
    top = logits.max(axis=1, keepdims=True)
    total = np.exp(logits - top).sum(axis=1, dtype=np.float64, keepdims=True)
    chosen = np.take_along_axis(logits, tokens, axis=1).astype(np.float64)
    return np.asarray(chosen - top - np.log(total), np.float64)
