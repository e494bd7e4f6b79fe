"""Writes tests/data/families/: a tiny model of every family, with the logits that transformers computes from it.

Weights follow from names (tests/models/random_values.py), so only their names, types and shapes are stored. They are
taken from what transformers saves, put back into the hub's form: one tensor an expert, FP8 and INT4 where the vendor
publishes it, the layer for multi-token prediction behind the others. transformers then gets all of it dequantised to
float32, INT4 by the compressed-tensors library.

A prompt is used only if no choice in it is close: where a router or an indexer picks the k largest scores, the next one
must be ``MARGIN`` away, or correct programs could pick differently.

Run by ``make goldens``, or alone: ``PYTHONPATH=. .venv-goldens/bin/python scripts/goldens_families.py [NAME ...]``.
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
from safetensors import safe_open
from safetensors.torch import save_file
from scripts.config_sizes import Config
from scripts.family_configs import CONFIGS
from tests.models.random_values import TensorSpec, normal, tensor
from transformers.modeling_layers import MtpModel

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "data" / "families"
TOKENS = 43
MARGIN = 2e-4
PREDICTS_NEXT = ("deepseek_v3", "glm4_moe")  # transformers has this layer for these; for others it is only written
KEPT_BF16 = ("embed_tokens", "lm_head", "norm", "mlp.gate.", "weights_proj", "eh_proj")  # beside FP8


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    for name in names or CONFIGS:
        config = CONFIGS[name]
        specs = tensor_specs(name, config)
        folder = FOLDER / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", "utf-8")
        (folder / "tensors.json").write_text(listed(specs), "utf-8")
        make(plain(config)).config.to_json_file(folder / "config_saved.json")
        arrays, seed = golden(name, config, specs)
        np.savez_compressed(folder / "golden.npz", allow_pickle=False, **arrays)
        size = sum(file.stat().st_size for file in folder.iterdir())
        shapes = {key: array.shape for key, array in arrays.items()}
        print(f"{name}: prompt {seed}, {len(specs)} tensors, {size} bytes, {shapes}", flush=True)


def listed(specs: list[TensorSpec]) -> str:
    lines = []
    for spec in specs:
        values: list[Any] = [list(spec.given)] if spec.given else [spec.mean, spec.spread]
        entry = [spec.dtype, list(spec.shape), *values, *filter(None, [spec.like])]
        lines.append(f"{json.dumps(spec.name)}: {json.dumps(entry)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def tensor_specs(name: str, config: Config) -> list[TensorSpec]:
    """Names and shapes as transformers saves the model, in the hub's form."""
    with tempfile.TemporaryDirectory() as folder:
        make(plain(config)).save_pretrained(folder)
        with safe_open(Path(folder) / "model.safetensors", "pt") as file:
            shapes = {hub_name(key): tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118, a safetensors file is no mapping
    specs = [spec for key, shape in sorted(shapes.items()) for spec in stored(name, key, shape)]
    return specs + next_token_layer(name, config, specs)


def hub_name(key: str) -> str:
    """transformers 5.23 saves Kimi's language model with the names of its vision tower's layers."""
    return key.replace("language_model.model.blocks.", "language_model.model.layers.")


def stored(name: str, key: str, shape: tuple[int, ...]) -> list[TensorSpec]:
    """How the hub stores the tensor: its type, and what belongs to it."""
    spread = float(f"{1.2 / shape[-1] ** 0.5:.3g}")
    if "norm" in key and key.endswith("weight") and len(shape) == 1:
        return [TensorSpec(key, "F32" if name == "deepseek_v32" else "BF16", shape, centre(name, key), 0.2)]
    if key.endswith("e_score_correction_bias"):
        return [TensorSpec(key, "F32", shape, -0.5, 0.3)]  # biased scores on both sides of 0
    if key.endswith("bias"):
        return [TensorSpec(key, "F32" if name == "deepseek_v32" else "BF16", shape, 0.0, 0.2)]
    if name == "minimax_m2" and key.endswith("gate.weight"):
        return [TensorSpec(key, "F32", shape, 0.0, spread)]
    if name == "kimi_k25_int4" and ".mlp.experts." in key:
        rows, cols = shape
        scale = float(f"{spread / 2.5:.3g}")
        return [
            TensorSpec(key + "_packed", "I32", (rows, cols // 8), 8.0, 2.5),
            TensorSpec(key + "_scale", "BF16", (rows, cols // 32), scale, float(f"{scale / 4:.3g}")),
            TensorSpec(key + "_shape", "I32", (2,), given=shape),
        ]
    if name == "glm52_fp8" and len(shape) == 2 and not any(part in key for part in KEPT_BF16):
        scale = float(f"{spread / 100:.3g}")
        blocks = tuple(ceil(size / 128) for size in shape)
        return [
            TensorSpec(key, "F8_E4M3", shape, 0.0, 100.0),
            TensorSpec(key + "_scale_inv", "F32", blocks, scale, float(f"{scale / 4:.3g}")),
        ]
    return [TensorSpec(key, "BF16", shape, 0.0, spread)]


def centre(name: str, key: str) -> float:
    return 0.0 if name.startswith("gemma3") and "vision" not in key else 1.0


def next_token_layer(name: str, config: Config, specs: list[TensorSpec]) -> list[TensorSpec]:
    """The layer for multi-token prediction, numbered behind the others: a decoder layer and what feeds it."""
    layers, hidden = config.get("num_hidden_layers", 0), config.get("hidden_size", 0)
    if not config.get("num_nextn_predict_layers"):
        return []
    old, new = f"model.layers.{layers - 1}.", f"model.layers.{layers}."
    found = [
        TensorSpec(new + spec.name.removeprefix(old), spec.dtype, spec.shape, spec.mean, spec.spread)
        for spec in specs
        if spec.name.startswith(old)
    ]
    norm = next(spec for spec in specs if spec.name == "model.norm.weight")
    for key in ("enorm", "hnorm", "shared_head.norm"):
        found.append(TensorSpec(f"{new}{key}.weight", norm.dtype, norm.shape, norm.mean, norm.spread))
    found.append(
        TensorSpec(f"{new}eh_proj.weight", "BF16", (hidden, 2 * hidden), 0.0, float(f"{0.85 / hidden**0.5:.3g}"))
    )
    if name.startswith("deepseek"):
        for key, like in (("embed_tokens", "model.embed_tokens.weight"), ("shared_head.head", "lm_head.weight")):
            source = next(spec for spec in specs if spec.name == like)
            found.append(TensorSpec(f"{new}{key}.weight", source.dtype, source.shape, source.mean, source.spread, like))
    return sorted(found, key=lambda spec: spec.name)


def plain(config: Config) -> Config:
    """The configuration of the same model, not quantised."""
    kept = {key: value for key, value in config.items() if key != "quantization_config"}
    if "text_config" in kept:
        kept["text_config"] = plain(kept["text_config"])
    return kept


def make(config: Config, folder: str | None = None) -> Any:
    """The model of transformers: empty, or with the weights that lie in ``folder``."""
    wrapped = "text_config" in config
    factory = transformers.AutoModelForImageTextToText if wrapped else transformers.AutoModelForCausalLM
    if folder is not None:
        return factory.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with tempfile.TemporaryDirectory() as empty:
        (Path(empty) / "config.json").write_text(json.dumps(config), "utf-8")
        read = transformers.AutoConfig.from_pretrained(empty)
    return factory.from_config(read, dtype=torch.float32)


def golden(name: str, config: Config, specs: list[TensorSpec]) -> tuple[dict[str, np.ndarray], int]:
    """The arrays of ``golden.npz``, from the first prompt without close choices, and that prompt's number."""
    with tempfile.TemporaryDirectory() as folder:
        save_file(dequantised(name, specs), Path(folder) / "model.safetensors", metadata={"format": "pt"})
        (Path(folder) / "config.json").write_text(json.dumps(plain(config)), "utf-8")
        model = make(config, folder)
        predictor = next_token_model(model, config["num_hidden_layers"]) if name in PREDICTS_NEXT else None
    for seed in range(100):
        tokens = 4 + (normal(f"{name} prompt {seed}", TOKENS) * 1000).astype(np.int64) % 114  # no image among them
        ids = torch.from_numpy(tokens)[None]
        with torch.inference_mode(), recorded_choices(model) as (margins, selected):
            logits = model(input_ids=ids, use_cache=False).logits[0]
            found = {"tokens": tokens.astype(np.int32), "logits": logits.float().numpy()}
            if selected:
                found["selected"] = np.stack(selected)
            if predictor is not None:
                found["next_logits"] = next_logits(model, predictor, ids).float().numpy()
        if min(margins, default=1.0) > MARGIN:
            return found, seed
    raise SystemExit(f"{name}: every prompt has a choice closer than {MARGIN}")


def dequantised(name: str, specs: list[TensorSpec]) -> dict[str, torch.Tensor]:
    stored = {spec.name: torch.from_numpy(tensor(name, spec)) for spec in specs}
    found = {}
    for spec in specs:
        values, base = stored[spec.name], spec.name.removesuffix("_packed")
        if spec.dtype == "F32" and not spec.name.endswith("_scale_inv"):
            found[spec.name] = values
        elif spec.dtype == "BF16" and not spec.name.endswith("weight_scale"):
            found[spec.name] = values.view(torch.bfloat16).float()
        elif spec.dtype == "F8_E4M3":
            scale = stored[spec.name + "_scale_inv"].repeat_interleave(128, 0).repeat_interleave(128, 1)
            found[spec.name] = values.view(torch.float8_e4m3fn).float() * scale[: spec.shape[0], : spec.shape[1]]
        elif base != spec.name:
            shape = torch.Size(stored[base + "_shape"].tolist())
            scale = stored[base + "_scale"].view(torch.bfloat16).float().repeat_interleave(32, 1)
            found[base] = unpack_from_int32(values, 4, shape).float() * scale
    return {key: value.contiguous() for key, value in found.items()}


@contextmanager
def recorded_choices(model: Any) -> Iterator[tuple[list[float], list[np.ndarray]]]:
    """While it is entered: by how much each choice of the k largest was decided, and what the indexers chose."""
    margins: list[float] = []
    selected: list[np.ndarray] = []
    inner = torch.Tensor.topk

    def topk(scores: torch.Tensor, k: int, *rest: Any, **named: Any) -> Any:
        if k < scores.shape[-1]:
            best = inner(scores.float(), k + 1, -1).values
            real = best[..., -1] > -1e30  # not masked
            margins.extend((best[..., -2] - best[..., -1])[real].flatten().tolist())
        return inner(scores, k, *rest, **named)

    def chosen(_module: Any, _inputs: Any, output: torch.Tensor) -> None:
        rows = [[i if i <= row else -1 for i in picks] for row, picks in enumerate(output[0].tolist())]
        selected.append(np.array([sorted(row, key=lambda i: (i < 0, i)) for row in rows], np.int32))

    hooks = [
        module.register_forward_hook(chosen)
        for key, module in model.named_modules()
        if key.endswith("self_attn.indexer")
    ]
    torch.Tensor.topk, free = topk, torch.topk
    torch.topk = lambda scores, k, *rest, **named: topk(scores, k, *rest, **named)
    try:
        yield margins, selected
    finally:
        torch.Tensor.topk, torch.topk = inner, free
        for hook in hooks:
            hook.remove()


def next_token_model(model: Any, layer: int) -> Any:
    """The layer for multi-token prediction, which transformers looks for at the layer numbers of the large models."""
    model._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{layer}\..*"]
    loaded = MtpModel.from_pretrained(model)
    return (loaded[0] if isinstance(loaded, tuple) else loaded).eval()


def next_logits(model: Any, predictor: Any, ids: torch.Tensor) -> torch.Tensor:
    states = model.model(input_ids=ids, use_cache=False).last_hidden_state
    positions = torch.arange(1, ids.shape[1])[None]
    out = predictor.forward_layer(0, states[:, :-1], positions, transformers.DynamicCache(), input_ids=ids[:, 1:])
    return predictor._project_to_logits(out)[0]


if __name__ == "__main__":
    main(sys.argv[1:])
