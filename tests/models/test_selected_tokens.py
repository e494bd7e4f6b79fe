"""Sparse attention reads the tokens that the specification chooses; layers without an indexer have no pages of it."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from trimaran.base.formats import IndexCache, KVFormat, LatentCache, WeightFormat
from trimaran.kernels.program import Buffer, Linear, Logits, SelectTokens, TakeRows, WeightSpec
from trimaran.kernels.weights import Weight
from trimaran.models.registry import build_program, read_config_file

from .families import NAMES, golden
from .running import Model, load, run
from .test_families import CHUNKS, EXECUTORS

SPARSE = [name for name in NAMES if "selected" in golden(name)]


def selecting(model: Model, indexer: int) -> Model:
    """The program up to its ``indexer``-th choice of tokens, whose result stands in the first columns of the logits."""
    ops = model.program.ops
    at = [i for i, op in enumerate(ops) if isinstance(op, SelectTokens)][indexer]
    chosen = ops[at].out
    taken = Buffer("taken", chosen.width, logits_rows=True)
    logits = Buffer("spread", model.program.vocab, logits_rows=True)
    unit_matrix = np.eye(logits.width, taken.width, dtype=np.float32)
    unit = Weight("spread", WeightFormat.FP32, unit_matrix.shape, unit_matrix)
    spec = WeightSpec("spread", unit.shape, matrix=True)
    tail = (TakeRows(taken, chosen), Linear(logits, taken, "spread"), Logits(logits))
    program = replace(model.program, ops=(*ops[: at + 1], *tail), weights={**model.program.weights, "spread": spec})
    return Model(model.cfg, program, {**model.weights, "spread": unit})


@pytest.mark.parametrize("chunks", ["whole", "chunked"])
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", SPARSE)
def test_the_chosen_tokens_are_those_of_transformers(name: str, executor: str, chunks: str) -> None:
    expected = golden(name)
    for indexer, selected in enumerate(expected["selected"]):
        model = selecting(load(name), indexer)
        logits = run(model, executor, expected["tokens"], CHUNKS[chunks])
        np.testing.assert_array_equal(logits[:, : selected.shape[1]], selected)


def test_there_are_prompts_longer_than_what_is_chosen() -> None:
    assert set(SPARSE) == {"deepseek_v32", "glm_moe_dsa", "glm52_fp8"}
    for name in SPARSE:
        assert golden(name)["selected"].shape[2] < len(golden(name)["tokens"]) / 2


def test_indexers_of_glm_5_2_are_21_of_its_78_layers(tmp_path: Path) -> None:
    """The published sizes: 89,856 bytes a token for latents in bf16, and 2,772 for keys of indexers in FP8."""
    tiny = json.loads((Path(__file__).parent.parent / "data" / "families" / "glm_moe_dsa" / "config.json").read_text())
    large = tiny | {
        "hidden_size": 6144, "num_hidden_layers": 78, "num_attention_heads": 64, "q_lora_rank": 2048,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256, "index_head_dim": 128, "index_n_heads": 32,
        "index_topk": 2048, "first_k_dense_replace": 3,
    }  # fmt: skip
    del large["indexer_types"]  # then the rule says it: every fourth layer from the third on, and those before
    (tmp_path / "config.json").write_text(json.dumps(large))
    cfg = read_config_file(tmp_path / "config.json")
    (group,) = build_program(cfg).groups
    keys, latents = sorted(group.caches, key=lambda cache: cache.layers)
    assert cfg.indexer is not None
    assert cfg.indexer.layers == {0, 1, *range(2, 78, 4)}
    assert latents == LatentCache(78, 512, 64)
    assert keys == IndexCache(21, 128)
    assert latents.token_bytes(KVFormat.BF16) == 89_856
    assert keys.token_bytes(KVFormat.BF16) == 2_772
    assert group.page_bytes(KVFormat.BF16, 64) == 64 * 92_628
