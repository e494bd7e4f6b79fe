"""What families share: grouped-query attention, the gated feed-forward, and the decoder around such blocks."""

from collections.abc import Callable

from trimaran.kernels.program import Activation, Buffer, HeadNorm, Program
from trimaran.models.builder import Builder, LayerNames
from trimaran.models.config import ModelConfig

Block = Callable[[Builder, LayerNames, Buffer], Buffer]  # a layer's normed input ``[hidden]`` to what is added to x


def attention(
    b: Builder, w: LayerNames, x: Buffer, *, output_bias: bool = False, whole_norm: bool = False, wide: bool = False
) -> Buffer:
    """Grouped-query attention. q, k and v have biases as the configuration says, o only with ``output_bias`` too.

    With ``qk_norm`` queries and keys are normed: each head by itself, or (``whole_norm``) all heads with one mean.
    ``wide``: what o reads keeps 15 bits, as what q, k and v read always does.
    """
    cfg = b.cfg
    q_norm, k_norm = (
        HeadNorm(w[f"self_attn.{name}_norm"], cfg.norm_eps, whole_norm) if cfg.qk_norm else None for name in "qk"
    )
    qkv = b.linear(x, w["self_attn.qkv"], cfg.q_width + 2 * cfg.kv_width, bias=cfg.attention_bias, wide=True)
    heads = b.attention(qkv, q_norm=q_norm, k_norm=k_norm)
    return b.linear(heads, w["self_attn.o_proj"], cfg.hidden, bias=output_bias and cfg.attention_bias, wide=wide)


def feed_forward(
    b: Builder,
    w: LayerNames,
    x: Buffer,
    *,
    name: str = "mlp",
    width: int | None = None,
    activation: Activation = "silu",
    wide: bool = False,
) -> Buffer:
    """``down(activation(gate(x)) * up(x))``; gate and up have ``width`` outputs, by default ``intermediate``.

    ``wide``: what the matrices read keeps 15 bits.
    """
    width = b.cfg.intermediate if width is None else width
    gate_up = b.linear(x, w[f"{name}.gate_up"], 2 * width, wide=wide)
    return b.linear(b.glu(gate_up, activation), w[f"{name}.down_proj"], b.cfg.hidden, wide=wide)


def decoder(cfg: ModelConfig, attention: Block, feed_forward: Block) -> Program:
    """Layers of ``x += attention(norm(x))`` and ``x += feed_forward(norm(x))`` behind the embedding."""
    b = Builder(cfg)
    x = b.embed("model.embed_tokens")
    for i in range(cfg.layers):
        with b.layer(i) as w:
            x = b.add(x, attention(b, w, b.rms_norm(x, w["input_layernorm"])))
            x = b.add(x, feed_forward(b, w, b.rms_norm(x, w["post_attention_layernorm"])))
    return with_logits(b, x)


def with_logits(b: Builder, x: Buffer) -> Program:
    """Ends a program whose last layer made ``x``: norm and output matrix, on the rows that need logits."""
    x = b.rms_norm(b.take_rows(x), "model.norm")
    b.logits(b.linear(x, "lm_head", b.cfg.vocab))
    return b.finish()
