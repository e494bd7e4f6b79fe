"""BERT as an encoder of texts: MiniLM, and other models of sentence-transformers with its layers.

Source: ``BertModel`` and ``BertForSequenceClassification`` of transformers; pooling as sentence-transformers has it.
"""

from trimaran.base.formats import WeightFormat
from trimaran.kernels.program import Program
from trimaran.models.blocks import attention
from trimaran.models.builder import Builder
from trimaran.models.config import ModelConfig


def build(cfg: ModelConfig) -> Program:
    """The family's program: norms follow the sums, and every token sees the whole text."""
    encoder = cfg.encoder
    assert encoder is not None, cfg
    b = Builder(cfg)
    words = b.embed("embeddings.word_embeddings")
    types = b.embed("embeddings.token_type_embeddings", index="type", table_rows=encoder.token_types)
    positions = b.embed("embeddings.position_embeddings", index="position", table_rows=encoder.positions)
    x = b.layer_norm(b.add(b.add(words, types), positions), "embeddings.LayerNorm")
    for i in range(cfg.layers):
        with b.layer(i) as w:
            x = b.layer_norm(b.add(x, attention(b, w, x, output_bias=True)), w["post_attention_layernorm"])
            inner = b.gelu(b.linear(x, w["mlp.up_proj"], cfg.intermediate, bias=True))
            x = b.layer_norm(b.add(x, b.linear(inner, w["mlp.down_proj"], cfg.hidden, bias=True)), w["post_layernorm"])
    text = b.mean_rows(x) if encoder.pooling == "mean" else b.take_rows(x)
    if encoder.score is not None:  # two small matrices behind all that rounding has done already
        pooled = b.tanh(b.linear(text, "pooler.dense", cfg.hidden, bias=True, least=WeightFormat.BF16))
        text = b.linear(pooled, "classifier", 1, bias=True, least=WeightFormat.BF16)
    b.logits(text)
    return b.finish()
