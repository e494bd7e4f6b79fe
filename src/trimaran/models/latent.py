"""Multi-head latent attention, and the choice of tokens that makes it sparse: blocks that several families share.

Attention runs in its absorbed form alone, for prompts too: queries go through each head's part of ``kv_b_proj`` that
makes keys, and what they gather from the latents through the part that makes values. Source: ``DeepseekV3Attention``
and ``GlmMoeDsaIndexer`` of transformers.
"""

from trimaran.kernels.program import Buffer
from trimaran.models.blocks import Block
from trimaran.models.builder import Builder, LayerNames

# Epsilon of the norms inside latent attention. Transformers builds them with their class's default whatever
# rms_norm_eps says, vLLM and SGLang with rms_norm_eps; Kimi and GLM-5, where the two differ, came with the former.
EPS = 1e-6


def latent_attention(b: Builder, w: LayerNames, x: Buffer) -> Buffer:
    """Attention of all tokens."""
    return _attend(b, w, _queries(b, w, x), _latents(b, w, x), None)


def sparse_attention() -> Block:
    """A new block for each model: attention of the tokens that an indexer chose, this layer's or else that of the last
    layer before it that has one."""
    selected: Buffer | None = None

    def block(b: Builder, w: LayerNames, x: Buffer) -> Buffer:
        nonlocal selected
        indexer = b.cfg.indexer
        assert indexer is not None, b.cfg
        ranked, kv = _queries(b, w, x), _latents(b, w, x)
        if w.index in indexer.layers:
            keys = b.linear(x, w["self_attn.indexer.wk"], indexer.dim, wide=True)
            weights = b.linear(x, w["self_attn.indexer.weights_proj"], indexer.heads, wide=True)
            queries = b.linear(ranked, w["self_attn.indexer.wq_b"], indexer.heads * indexer.dim, wide=True)
            selected = b.select_tokens(queries, keys, weights, w["self_attn.indexer.k_norm"], EPS)
        assert selected is not None, "the first layer has an indexer"
        return _attend(b, w, ranked, kv, selected)

    return block


def _queries(b: Builder, w: LayerNames, x: Buffer) -> Buffer:
    """What queries, of attention and of an indexer, are made from: ``[q_rank]``."""
    assert b.cfg.latent is not None, b.cfg
    ranked = b.linear(x, w["self_attn.q_a_proj"], b.cfg.latent.q_rank, wide=True)
    return b.rms_norm(ranked, w["self_attn.q_a_layernorm"], EPS)


def _latents(b: Builder, w: LayerNames, x: Buffer) -> Buffer:
    """The latent and the key part that all heads share, before norm and rotation."""
    assert b.cfg.latent is not None, b.cfg
    return b.linear(x, w["self_attn.kv_a_proj_with_mqa"], b.cfg.latent.rank + b.cfg.rope.dims, wide=True)


def _attend(b: Builder, w: LayerNames, ranked: Buffer, kv: Buffer, selected: Buffer | None) -> Buffer:
    cfg, latent = b.cfg, b.cfg.latent
    assert latent is not None, cfg
    q = b.linear(ranked, w["self_attn.q_b_proj"], cfg.q_width, wide=True)
    q_latent = b.head_linear(q, w["self_attn.k_up"], cfg.heads, latent.nope, latent.rank)
    gathered = b.latent_attention(q_latent, q, kv, w["self_attn.kv_a_layernorm"], EPS, selected)
    values = b.head_linear(gathered, w["self_attn.v_up"], cfg.heads, latent.rank, latent.value)
    return b.linear(values, w["self_attn.o_proj"], cfg.hidden)
