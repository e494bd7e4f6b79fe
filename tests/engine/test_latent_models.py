"""Models with latent and sparse attention in an engine that is short of pages: latents and index keys of a token lie in
one page, are cached with the prefix and given up together, and each request's tokens are those that it gets alone."""

import random

import pytest

from models.families import write_checkpoint
from trimaran.base.formats import KVFormat, WeightFormat
from trimaran.base.messages import Submit
from trimaran.engine.config import EngineConfig
from trimaran.engine.load import load_engine

from .driving import greedy, run
from .test_windowed_models import ROWS, VOCAB, in_waves, least_memory


@pytest.mark.parametrize(
    ("executor", "weights", "kv"),
    [
        ("native", WeightFormat.INT8, KVFormat.INT8),
        ("native", WeightFormat.FP32, KVFormat.FP32),
        ("reference", WeightFormat.BF16, KVFormat.BF16),
    ],
)
@pytest.mark.parametrize("name", ["kimi_k25", "glm_moe_dsa"])
def test_greedy_answers_do_not_depend_on_company_or_memory(tmp_path, name, executor, weights, kv):
    path = write_checkpoint(name, tmp_path / "model")
    rng = random.Random(0)
    shared = [rng.randrange(VOCAB) for _ in range(180)]
    prompts = {f"r{i}": shared[: rng.randrange(180)] + [rng.randrange(VOCAB) for _ in range(5)] for i in range(8)}
    requests = [Submit(name, prompt, greedy(40, ignore_eos=True)) for name, prompt in prompts.items()]
    options = {"model": str(path), "executor": executor, "weight_format": weights, "kv_format": kv, "threads": 1}

    single = load_engine(EngineConfig(max_num_seqs=1, prefix_caching=False, **options))
    alone = {request.id: run(single, request)[request.id].ids for request in requests}
    single.close()
    assert len({tuple(ids) for ids in alone.values()}) > 1, "answers differ by prompt"
    memory = least_memory(path, kv)
    crowd = load_engine(EngineConfig(max_num_seqs=8, max_num_batched_tokens=ROWS, kv_memory_bytes=memory, **options))
    assert len(crowd.info.pages) == 1
    assert in_waves(crowd, requests) == alone
    assert crowd.stats().preemptions > 0
    assert in_waves(crowd, requests) == alone, "with what the prefix cache has kept"
    assert crowd.stats().cached_tokens > 0
    crowd._cache.check()
    crowd.close()
