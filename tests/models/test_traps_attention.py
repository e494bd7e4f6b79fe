"""Mistakes that are easily made with grouped-query attention and the dense families. Each must show in the logits.

A golden that would not notice proves nothing: every trap springs its mistake in our own program, weights or
arithmetic, and the result must be far from the golden logits.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from trimaran.kernels import reference_ops
from trimaran.kernels.program import Attention, Embed, Glu, HeadNorm
from trimaran.kernels.reference import ReferenceExecutor

from .springing import FAR, Spring, Trap, config, fields, op, weights


def rope(**changes: Any) -> Spring:
    return config(rope=lambda cfg: replace(cfg.rope, **changes))


def scaling(**changes: Any) -> Spring:
    return config(rope=lambda cfg: replace(cfg.rope, scaling=structs.replace(cfg.rope.scaling, **changes)))


def window(by: int) -> Spring:
    return config(window=lambda cfg: cfg.window + by)


def halves_swapped(gate_up: np.ndarray) -> np.ndarray:
    return np.roll(gate_up, len(gate_up) // 2, axis=0)


def scaled_like_latents(cfg: Any) -> float:
    return float(cfg.scale * (0.1 * np.log(cfg.rope.scaling.factor) + 1) ** 2)


def everywhere(cfg: Any) -> frozenset[int]:
    return frozenset(range(cfg.layers))


def each_by_itself(found: Attention) -> Attention:
    assert found.q_norm is not None
    assert found.k_norm is not None
    return replace(found, q_norm=replace(found.q_norm, whole=False), k_norm=replace(found.k_norm, whole=False))


def norm_each(executor: Any, heads: np.ndarray, norm: HeadNorm | None) -> np.ndarray:
    assert norm is not None
    weight = executor._weights[norm.weight].reshape(-1, heads.shape[2])
    return reference_ops.rms_norm(heads, weight, norm.eps)


def norm_late(executor: Any, op: Attention, qkv: np.ndarray, step: Any) -> np.ndarray:
    """The mean square does not change as a head is rotated, so that only the norm's weight comes too late."""

    def rotate(heads: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
        norm = op.q_norm if heads.shape[1] == op.heads else op.k_norm
        assert norm is not None
        weight = executor._weights[norm.weight]
        return right_rotate(heads / weight, cos, sin) * weight

    with pytest.MonkeyPatch.context() as patcher:
        patcher.setattr(reference_ops, "rotate", rotate)
        return right_attention(executor, op, qkv, step)


right_attention, right_rotate = ReferenceExecutor._attention, reference_ops.rotate
TRAPS = {
    "rope's base is not read": Trap("llama3", rope(theta=10000.0)),
    "rope's scaling is not read": Trap("llama3", rope(scaling=None)),
    "rope_parameters is not read, only rope_theta": Trap("ministral3", rope(theta=10000.0)),
    "gate and up change places": Trap("llama3", weights("mlp.gate_up", halves_swapped)),
    "the default epsilon is taken": Trap("llama3", config(norm_eps=1e-6)),
    "biases of q, k and v are left out": Trap("qwen2", weights("qkv.bias", np.zeros_like)),
    "YaRN does not lengthen cosines and sines": Trap("qwen2", scaling(magnitude=1.0)),
    "a window that use_sliding_window turns off": Trap("qwen2", config(window=7, windowed=everywhere)),
    "queries and keys are normed after their rotation": Trap(
        "qwen3", patch=(ReferenceExecutor, "_attention", norm_late)
    ),
    "queries and keys are not normed": Trap("qwen3", config(qk_norm=False)),
    "the window is one longer": Trap("mistral", window(+1)),
    "the window is one shorter": Trap("mistral", window(-1)),
    "the window is not read": Trap("mistral", config(window=None, windowed=frozenset())),
    "a window beyond a page is one longer": Trap("gemma3_vlm", window(+1)),
    "a window beyond a page is one shorter": Trap("gemma3_vlm", window(-1)),
    "queries are not scaled by position": Trap("ministral3", config(query_scale=None)),
    "YaRN scales scores, which is for latent attention": Trap("ministral3", config(scale=scaled_like_latents)),
    "norms are not 1 + w": Trap("gemma3_text", weights("norm", lambda w: w - 1)),
    "embeddings are not scaled": Trap("gemma3_text", fields(Embed, scale=1.0)),
    "scores are scaled by the width of a head": Trap("gemma3_vlm", config(scale=lambda cfg: cfg.head_dim**-0.5)),
    "local layers use the rope of global ones": Trap("gemma3_text", config(local_rope=None)),
    "global layers use the rope of local ones": Trap("gemma3_text", config(rope=lambda cfg: cfg.local_rope)),
    "rope is not slowed in global layers": Trap("gemma3_vlm", rope(scaling=None)),
    "rope is slowed in local layers too": Trap(
        "gemma3_vlm",
        config(local_rope=lambda cfg: replace(cfg.local_rope, scaling=cfg.rope.scaling)),
    ),
    "the first layer of each six is the global one": Trap(
        "gemma3_vlm",
        config(windowed=lambda cfg: frozenset(i for i in range(cfg.layers) if i % 6)),
    ),
    "GeGLU is SwiGLU": Trap("gemma3_text", fields(Glu, activation="silu")),
    "partial_rotary_factor is 1 by default": Trap("glm4_moe", rope(dims=32)),
    "use_qk_norm is not read": Trap("glm4_moe", config(qk_norm=False)),
    "rotary_dim is not read": Trap("minimax_m2", rope(dims=32)),
    "each head is normed by itself": Trap(
        "minimax_m2", op(Attention, each_by_itself), (ReferenceExecutor, "_head_norm", norm_each)
    ),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_trap_shows(trap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert TRAPS[trap].distance(monkeypatch) > FAR
