"""Models of the catalogue as configurations, so that plans and sizes need none of their files."""

from functools import cache

from trimaran.base.formats import WeightFormat
from trimaran.checkpoint.catalog import CatalogEntry, load_catalog
from trimaran.checkpoint.catalog_shape import Shape
from trimaran.kernels.program import RopeSpec, WeightSpec
from trimaran.models.config import ExpertsConfig, IndexerConfig, LatentConfig, ModelConfig
from trimaran.models.held import held_format
from trimaran.models.registry import build_program
from trimaran.plan.weights import program_weights

VECTOR_BYTES = 4  # norms, biases and the like are held as fp32
_EVERY = 6  # Gemma 3: of so many layers, one sees all tokens


@cache
def catalogue_config(name: str) -> ModelConfig | None:
    """The configuration of the model called ``name``, ``None`` where the catalogue does not know its sizes.

    Right in all that decides bytes; what does not (rope, epsilon, how experts are scored) has some value.
    """
    entry = load_catalog()[name]
    return None if entry.shape is None else _config(entry, entry.shape)


def held_bytes(name: str) -> dict[WeightFormat, int]:
    """Bytes of all weights in memory by the format that is asked for; empty where sizes are unknown.

    Without multi-token-prediction layers and vision.
    """
    cfg = catalogue_config(name)
    if cfg is None:
        return {}
    weights = program_weights(cfg, build_program(cfg), mtp=False)
    matrices = [(spec, count) for spec, count in weights if spec.matrix]
    vectors = sum(count for spec, count in weights if not spec.matrix)
    return {
        fmt: sum(_rows_bytes(spec, count, held_format(spec, fmt)) for spec, count in matrices) + vectors * VECTOR_BYTES
        for fmt in WeightFormat
    }


def _rows_bytes(spec: WeightSpec, count: int, fmt: WeightFormat) -> int:
    cols = spec.shape[-1]
    return count // cols * fmt.row_bytes(cols)


def _config(entry: CatalogEntry, shape: Shape) -> ModelConfig:
    latent, experts, indexer = shape.latent, shape.experts, shape.indexer
    head_dim = shape.head_dim if latent is None else latent.nope + latent.rope
    windowed = {i for i in range(shape.layers) if (i + 1) % _EVERY} if shape.window else set()
    return ModelConfig(
        family=entry.family,
        vocab=shape.vocab,
        hidden=shape.hidden,
        intermediate=shape.intermediate,
        layers=shape.layers,
        heads=shape.heads,
        kv_heads=shape.kv_heads or shape.heads,
        head_dim=head_dim,
        norm_eps=1e-6,
        rope=RopeSpec(10000.0, head_dim if latent is None else latent.rope),
        context=entry.context,
        tied=shape.tied,
        attention_bias=shape.attention_bias,
        bos_id=None,
        eos_ids=frozenset(),
        qk_norm=shape.qk_norm,
        window=shape.window,
        windowed=frozenset(windowed),
        experts=None
        if experts is None
        else ExpertsConfig(
            experts=experts.experts,
            top_k=1,
            width=experts.width,
            shared_width=experts.shared_width,
            dense=frozenset(range(experts.dense)),
            scoring="softmax" if entry.family == "qwen3_moe" else "sigmoid",
        ),
        latent=None if latent is None else LatentConfig(latent.q_rank, latent.rank, latent.nope, latent.value),
        indexer=None
        if indexer is None
        else IndexerConfig(indexer.heads, indexer.dim, 1, frozenset(range(indexer.layers)), interleaved=False),
        mtp_layers=shape.mtp_layers,
    )
