"""Mistakes that are easily made with routers and experts. See ``test_traps_attention.py``."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from trimaran.kernels import reference_ops
from trimaran.kernels.program import Route

from .random_values import to_bf16
from .running import load
from .springing import FAR, Spring, Trap, config, fields, weights

SIGMOID = ("deepseek_v3", "kimi_k25", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "minimax_m2")
SHARED = ("deepseek_v3", "kimi_k25", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa")


def router(
    *, mask: float = -np.inf, in_group: Callable[..., np.ndarray] = np.sum, biased: bool = False
) -> Callable[[np.ndarray, np.ndarray, Route], np.ndarray]:
    """The sigmoid router with other values for masked experts, another score of a group, or biased weights."""

    def route(logits: np.ndarray, bias: np.ndarray, op: Route) -> np.ndarray:
        scores = 1 / (1 + np.exp(-logits))
        choice = (scores + bias).reshape(len(logits), op.groups, -1)
        best = np.argsort(-in_group(np.sort(choice, axis=2)[..., -2:], axis=2), axis=1)[:, : op.top_groups]
        kept = (np.arange(op.groups) == best[..., None]).any(axis=1)
        choice = np.where(kept[..., None], choice, mask).reshape(logits.shape)
        experts = np.argsort(-choice, axis=1)[:, : op.top_k]
        found = np.take_along_axis(scores + bias if biased else scores, experts, axis=1)
        return np.concatenate([experts, found / found.sum(axis=1, keepdims=True) * op.factor], axis=1)

    return route


def routed(name: str, **changes: Any) -> Trap:
    return Trap(name, patch=(reference_ops, "route", router(**changes)))


def experts(**changes: Any) -> Spring:
    return config(experts=lambda cfg: replace(cfg.experts, **changes))


def gates_swapped(name: str) -> Spring:
    """``up`` is taken for ``gate`` in every expert."""
    count = load(name).cfg.experts.experts

    def swap(gate_up: np.ndarray) -> np.ndarray:
        return gate_up.reshape(count, 2, -1, gate_up.shape[1])[:, ::-1].reshape(gate_up.shape)

    return weights("mlp.experts.gate_up", swap)


def through_bf16(gate: np.ndarray) -> np.ndarray:
    return (to_bf16(gate).astype(np.uint32) << 16).view(np.float32)


def scaled_shared(name: str) -> Spring:
    """What all tokens share is scaled as routed experts are."""
    return weights("shared_experts.down_proj", lambda down: down * np.float32(load(name).cfg.experts.factor))


def each(names: tuple[str, ...], mistake: str, make: Callable[[str], Trap]) -> dict[str, Trap]:
    return {f"{name}: {mistake}": make(name) for name in names}


TRAPS = {
    **each(SIGMOID, "weights are biased scores", lambda name: routed(name, biased=True)),
    **each(SIGMOID, "the bias is not read", lambda name: Trap(name, fields(Route, bias=None))),
    **each(SIGMOID, "scores are a softmax", lambda name: Trap(name, fields(Route, scoring="softmax"))),
    **each(SIGMOID, "weights are not normalised", lambda name: Trap(name, fields(Route, normalise=False))),
    **each(SHARED, "weights lack the scaling factor", lambda name: Trap(name, fields(Route, factor=1.0))),
    **each(SHARED, "what is shared is scaled", lambda name: Trap(name, lambda n: scaled_shared(n)(n))),
    **each(
        SHARED,
        "what is shared is left out",
        lambda name: Trap(name, weights("shared_experts.down_proj", np.zeros_like)),
    ),
    **each(
        (*SIGMOID, "qwen3_moe"), "gate and up change places", lambda name: Trap(name, lambda n: gates_swapped(n)(n))
    ),
    "groups are not read": Trap("deepseek_v3", fields(Route, groups=1, top_groups=1)),
    "a group's score is its best expert's": routed("deepseek_v3", in_group=np.max),
    "experts of other groups have a score of 0": routed("deepseek_v3", mask=0.0),
    "norm_topk_prob is not read": Trap("qwen3_moe", fields(Route, normalise=False)),
    "scores are a sigmoid": Trap("qwen3_moe", fields(Route, scoring="sigmoid")),
    "the router's matrix is rounded to bf16": Trap("minimax_m2", weights("mlp.gate", through_bf16)),
    "one expert fewer": Trap("qwen3_moe", lambda name: experts(top_k=2)(name)),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_trap_shows(trap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert TRAPS[trap].distance(monkeypatch) > FAR


@pytest.mark.parametrize("name", SIGMOID)
def test_the_router_of_these_traps_is_right_without_a_mistake(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert routed(name).distance(monkeypatch) <= 1e-4
