"""Bytes of a model's weights in the formats that checkpoints come in, and what each GPU of a group holds of them."""

from dataclasses import dataclass
from enum import StrEnum
from math import ceil, prod

from trimaran.kernels.program import Program, WeightSpec
from trimaran.models.config import ModelConfig

_FP8_BLOCK = 128 * 128  # weights that share an fp32 scale
_INT4_GROUP = 32  # weights that share a bf16 scale


class WeightRecipe(StrEnum):
    """What a checkpoint holds its weights in.

    ``bf16``: everything. ``fp8``: matrices of the layers in blocks of 128 x 128, as DeepSeek and GLM publish them;
    embedding, output matrix, norms, routers and the indexer's head weights stay bf16. ``int4``: routed experts in
    groups of 32, as Kimi publishes them, and the rest bf16; in a model without experts, the matrices of its layers.
    """

    BF16 = "bf16"
    FP8 = "fp8"
    INT4 = "int4"


@dataclass(frozen=True)
class WeightBytes:
    """``total`` of the checkpoint, and what one of ``gpus`` holds under tensor parallelism: a share of what is cut,
    and the whole of what every GPU needs."""

    total: float
    per_gpu: float


def program_weights(cfg: ModelConfig, program: Program, *, mtp: bool) -> list[tuple[WeightSpec, int]]:
    """Every weight with how many numbers it holds; a tied matrix once. ``mtp``: those of multi-token-prediction
    layers too."""
    specs = [spec for spec in program.weights.values() if not (cfg.tied and spec.name == "lm_head")]
    if mtp:
        specs += _mtp_specs(cfg, program)
    return [(spec, prod(spec.shape)) for spec in specs]


def weight_bytes(cfg: ModelConfig, program: Program, recipe: WeightRecipe, gpus: int, *, mtp: bool) -> WeightBytes:
    """Bytes of ``program``'s weights; with ``mtp`` those of multi-token-prediction layers too."""
    total = cut = whole = 0.0
    for spec, count in program_weights(cfg, program, mtp=mtp):
        size = count * _bytes_each(spec, recipe, has_experts=cfg.experts is not None)
        total += size
        if _is_cut(spec):
            cut += size * _copies(spec, cfg, gpus)
        else:
            whole += size
    return WeightBytes(total, cut / gpus + whole)


def _mtp_specs(cfg: ModelConfig, program: Program) -> list[WeightSpec]:
    """A multi-token-prediction layer is one more layer like the last, with three norms and a matrix that joins the
    embedding and the state; in sparse attention it has an indexer of its own."""
    last = f"model.layers.{cfg.layers - 1}."
    layer = {spec.name.removeprefix(last): spec for spec in program.weights.values() if spec.name.startswith(last)}
    if cfg.indexer is not None:
        first = "model.layers.0."
        for spec in program.weights.values():
            if spec.name.startswith(f"{first}self_attn.indexer."):
                layer[spec.name.removeprefix(first)] = spec
    specs = []
    for i in range(cfg.mtp_layers):
        prefix = f"model.layers.{cfg.layers + i}."
        specs += [WeightSpec(prefix + name, spec.shape, spec.matrix, spec.least) for name, spec in layer.items()]
        specs += [WeightSpec(f"{prefix}{name}_norm", (cfg.hidden,), matrix=False) for name in ("e", "h", "shared_head")]
        specs.append(WeightSpec(f"{prefix}eh_proj", (cfg.hidden, 2 * cfg.hidden), matrix=True))
    return specs


_STAY_BF16 = ("model.embed_tokens", "lm_head", "mlp.gate", "indexer.weights_proj", "eh_proj")
_NOT_CUT = ("q_a_proj", "kv_a_proj_with_mqa", "mlp.gate", "eh_proj")  # and what is no matrix, and the indexer


def _bytes_each(spec: WeightSpec, recipe: WeightRecipe, *, has_experts: bool) -> float:
    if "e_score_correction_bias" in spec.name:
        return 4.0
    if not spec.matrix or spec.name.endswith(_STAY_BF16) or recipe is WeightRecipe.BF16:
        return 2.0
    if recipe is WeightRecipe.FP8:
        return 1.0 + 4 / _FP8_BLOCK
    quantised = ".experts." in spec.name if has_experts else True
    return 0.5 + 2 / _INT4_GROUP if quantised else 2.0


def _is_cut(spec: WeightSpec) -> bool:
    return spec.matrix and not spec.name.endswith(_NOT_CUT) and ".indexer." not in spec.name


def _copies(spec: WeightSpec, cfg: ModelConfig, gpus: int) -> float:
    """How much larger the GPUs' shares of a cut matrix are together than the matrix: key and value heads are whole."""
    if not spec.name.endswith("self_attn.qkv"):
        return 1.0
    heads = ceil(cfg.kv_heads / gpus) * gpus
    return (cfg.q_width + 2 * heads * cfg.head_dim) / (cfg.q_width + 2 * cfg.kv_width)
