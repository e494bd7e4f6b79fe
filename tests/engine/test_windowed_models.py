"""Models with sliding windows on the executors that compute: in an engine that is short of pages, with neighbours,
chunks, preemption and cached prefixes, each request's tokens are those that it gets alone."""

import json
import random
from pathlib import Path

import pytest
from msgspec import structs

from models.families import write_checkpoint
from trimaran.base.formats import KVFormat, WeightFormat
from trimaran.base.messages import Submit
from trimaran.checkpoint import open_checkpoint
from trimaran.engine.config import EngineConfig
from trimaran.engine.engine import Engine
from trimaran.engine.load import load_engine
from trimaran.engine.window import most_pages
from trimaran.models.registry import build_program, read_config

from .driving import Answers, greedy, run

CONTEXT, VOCAB, ROWS = 256, 128, 24


def checkpoint(folder: Path, name: str, window: int) -> Path:
    path = write_checkpoint(name, folder)
    config = json.loads((path / "config.json").read_text())
    assert config["sliding_window"] != window
    (path / "config.json").write_text(json.dumps(config | {"sliding_window": window}))
    return path


def least_memory(path: Path, kv_format: KVFormat) -> int:
    """Bytes of the pages that one sequence of full length needs."""
    opened = open_checkpoint(path)
    try:
        groups = build_program(read_config(opened)).groups
    finally:
        opened.close()
    return sum(group.page_bytes(kv_format, 16) * most_pages(CONTEXT, ROWS, group.window, 16) for group in groups)


def in_waves(engine: Engine, requests: list[Submit]) -> dict[str, list[int]]:
    """The tokens of each request, where later ones go first and earlier ones may have to give up their pages."""
    answers = Answers()
    for number, request in enumerate(requests):
        engine.submit(structs.replace(request, priority=-number))
        for _ in range(10):
            answers.take(engine.step())
    while not engine.idle:
        answers.take(engine.step())
    return {name: answer.ids for name, answer in answers.items()}


@pytest.mark.parametrize(
    ("executor", "weights", "kv"),
    [
        ("native", WeightFormat.INT8, KVFormat.INT8),
        ("native", WeightFormat.BF16, KVFormat.BF16),
        ("native", WeightFormat.FP32, KVFormat.FP32),
        ("reference", WeightFormat.FP32, KVFormat.FP32),
    ],
)
@pytest.mark.parametrize(("name", "window"), [("gemma3_text", 40), ("gemma3_text", 130), ("mistral", 33)])
def test_greedy_answers_do_not_depend_on_company_or_memory(tmp_path, name, window, executor, weights, kv):
    path = checkpoint(tmp_path / "model", name, window)
    rng = random.Random(0)
    shared = [rng.randrange(VOCAB) for _ in range(180)]
    count, length = (3, 20) if executor == "reference" else (8, 40)
    prompts = {f"r{i}": shared[: rng.randrange(180)] + [rng.randrange(VOCAB) for _ in range(5)] for i in range(count)}
    requests = [Submit(name, prompt, greedy(length, ignore_eos=True)) for name, prompt in prompts.items()]
    options = {"model": str(path), "executor": executor, "weight_format": weights, "kv_format": kv, "threads": 1}

    single = load_engine(EngineConfig(max_num_seqs=1, prefix_caching=False, **options))
    alone = {request.id: run(single, request)[request.id].ids for request in requests}
    single.close()
    assert len({tuple(ids) for ids in alone.values()}) > 1, "answers differ by prompt"
    memory = least_memory(path, kv) * 2
    crowd = load_engine(EngineConfig(max_num_seqs=8, max_num_batched_tokens=ROWS, kv_memory_bytes=memory, **options))
    assert [pages.window for pages in crowd.info.pages].count(window) == 1
    assert in_waves(crowd, requests) == alone
    assert crowd.stats().preemptions > 0
    assert in_waves(crowd, requests) == alone, "with what the prefix cache has kept"
    assert crowd.stats().cached_tokens > 0
    crowd._cache.check()
    crowd.close()
