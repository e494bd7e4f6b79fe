"""Mistakes that are easily made with latent attention and its indexer. See ``test_traps_attention.py``."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from trimaran.kernels import reference_latent, reference_ops
from trimaran.kernels.program import LatentAttention, Op, RmsNorm, SelectTokens
from trimaran.models import names
from trimaran.models.names import HeadRows, Part

from .families import tensor_specs
from .random_values import tensor
from .running import Model, load
from .springing import FAR, Trap, config, fields, file_read_with, op, weights


def as_it_lies(heads: int, dim: int, first: int = 0, rotated: int | None = None) -> HeadRows:
    """Rows that interleaved rope pairs are left where they are, as if the file were half-split."""
    return HeadRows(heads, dim, (*range(dim),))


def values_first(inner: str, tensor: str, rows: int, cfg: Any, sizes: Any) -> Part:
    """``kv_b_proj`` is cut as if a head's values came before its keys."""
    part = _latent_part(inner, tensor, rows, cfg, sizes)
    if inner == "self_attn.k_up":
        return replace(part, head_rows=replace(part.head_rows, taken=(*range(sizes.value, sizes.value + sizes.nope),)))
    if inner == "self_attn.v_up":
        return replace(part, head_rows=replace(part.head_rows, taken=(*range(sizes.value),)))
    return part


_latent_part = names._latent_part


def heads_of_keys_first(inner: str, tensor: str, rows: int, cfg: Any, sizes: Any) -> Part:
    """``kv_b_proj`` is cut as if all heads' keys came before all heads' values."""
    part = _latent_part(inner, tensor, rows, cfg, sizes)
    of, keys = cfg.heads * (sizes.nope + sizes.value), cfg.heads * sizes.nope
    if inner == "self_attn.v_up":
        return Part(tensor, rows, HeadRows(1, of, (*range(keys, of),)))
    return part


def products_before_relu(q: np.ndarray, keys: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return weights @ (q @ keys.T)


def all_tokens(scores: np.ndarray, count: int) -> np.ndarray:
    """The latest tokens, as a window would have it."""
    return np.arange(len(scores))[-count:]


def rms_for_layer(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, eps: float) -> np.ndarray:
    return weight * x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) + bias


def choice_of_first_layer(name: str) -> Model:
    """Layers without an indexer use the choice of the first layer, not of the last that has one."""
    model = load(name)
    first = next(found.out for found in model.program.ops if isinstance(found, SelectTokens))
    own = {found.out for found in model.program.ops if isinstance(found, SelectTokens)}
    ops: list[Op] = []
    fresh = False
    for found in model.program.ops:
        fresh = fresh or (isinstance(found, SelectTokens) and found.out in own)
        if isinstance(found, LatentAttention):
            found, fresh = (found if fresh else replace(found, selected=first)), False
        ops.append(found)
    return Model(model.cfg, replace(model.program, ops=tuple(ops)), model.weights)


def blocks_of_equal_rows(name: str) -> Model:
    """A scale's rows are taken to be rows / scale rows, which is not 128 where the last block is not full."""
    specs = {spec.name: spec for spec in tensor_specs(name)}
    model = load(name)
    wrong = dict(model.weights)
    for layer in range(model.cfg.layers):
        key = f"model.layers.{layer}.self_attn.kv_a_proj_with_mqa"
        scale = tensor(name, specs[key + ".weight_scale_inv"])
        rows, size = model.weights[key].data.shape[0], 128
        right = np.repeat(scale, size, 0)[:rows, :1]
        equal = np.repeat(scale, -(-rows // len(scale)), 0)[:rows, :1]
        wrong[key] = replace(model.weights[key], data=model.weights[key].data * (equal / right).astype(np.float32))
    return Model(model.cfg, model.program, wrong)


def mscale_once(cfg: Any) -> float:
    return float(cfg.scale / (0.1 * math.log(cfg.rope.scaling.factor) + 1))


def no_mscale(cfg: Any) -> float:
    return float(cfg.head_dim**-0.5)


def yarn_on_cosines(cfg: Any) -> Any:
    scaling = cfg.rope.scaling
    return replace(cfg.rope, scaling=structs.replace(scaling, magnitude=0.1 * math.log(scaling.factor) + 1))


def indexer(**changes: Any) -> Any:
    return file_read_with(indexer=lambda cfg: replace(cfg.indexer, **changes))


def eps_of_model(name: str) -> Model:
    eps = load(name).cfg.norm_eps
    model = op(RmsNorm, lambda found: replace(found, eps=eps) if "q_a_layernorm" in found.weight else found)(name)
    ops = tuple(replace(found, eps=eps) if isinstance(found, LatentAttention) else found for found in model.program.ops)
    return Model(model.cfg, replace(model.program, ops=ops), model.weights)


TRAPS = {
    **{
        f"{name}: the norms of latents have the model's epsilon": Trap(name, eps_of_model)
        for name in ("deepseek_v3", "kimi_k25", "glm4_moe_lite", "glm_moe_dsa")
    },
    "rope is half-split": Trap("deepseek_v3", patch=(names, "half_split", as_it_lies)),
    "scores lack mscale": Trap("deepseek_v3", config(scale=no_mscale)),
    "scores have mscale once": Trap("kimi_k25", config(scale=mscale_once)),
    "YaRN lengthens cosines and sines": Trap("kimi_k25", config(rope=yarn_on_cosines)),
    "head_dim of the file is the width of a head": Trap("glm_moe_dsa", config(scale=192**-0.5)),
    "rope_theta is read at the top alone": Trap("glm_moe_dsa", config(rope=lambda cfg: replace(cfg.rope, theta=1e4))),
    "kv_b_proj has values first": Trap("glm4_moe_lite", patch=(names, "_latent_part", values_first)),
    "kv_b_proj has all keys first": Trap("glm4_moe_lite", patch=(names, "_latent_part", heads_of_keys_first)),
    "the indexer of V3.2 pairs (2i, 2i + 1)": Trap("deepseek_v32", indexer(interleaved=True)),
    "the indexer of GLM-5 pairs (i, i + dim/2)": Trap("glm_moe_dsa", indexer(interleaved=False)),
    "one token fewer is chosen": Trap("deepseek_v32", config(indexer=lambda cfg: replace(cfg.indexer, top_k=3))),
    "one token more is chosen": Trap("glm_moe_dsa", config(indexer=lambda cfg: replace(cfg.indexer, top_k=5))),
    "attention is not sparse": Trap("deepseek_v32", fields(LatentAttention, selected=None)),
    "the latest tokens are chosen": Trap("glm_moe_dsa", patch=(reference_latent, "largest", all_tokens)),
    "products of the indexer may be negative": Trap(
        "glm_moe_dsa", patch=(reference_latent, "index_scores", products_before_relu)
    ),
    "keys of the indexer lack their bias": Trap("deepseek_v32", weights("k_norm.bias", np.zeros_like)),
    "keys of the indexer have an RMS norm": Trap("glm_moe_dsa", patch=(reference_ops, "layer_norm", rms_for_layer)),
    "layers without an indexer use the first choice": Trap("glm_moe_dsa", choice_of_first_layer),
    "scales of a last block that is not full are spread": Trap("glm52_fp8", blocks_of_equal_rows),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_trap_shows(trap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert TRAPS[trap].distance(monkeypatch) > FAR
