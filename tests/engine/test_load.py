"""Real models, tiny and small, on the executors that compute."""

import random
from pathlib import Path

import pytest

from trimaran.base.errors import CheckpointError, ConfigError, NumericsError
from trimaran.base.formats import ActivationFormat, KVFormat, WeightFormat
from trimaran.base.messages import CachePages, Failed, Submit
from trimaran.base.sampling import SamplingParams
from trimaran.engine.config import EngineConfig
from trimaran.engine.engine import Engine
from trimaran.engine.load import load_engine

from .driving import greedy, null_engine, run
from .tiny_model import VOCAB, write_model

EXECUTORS = ["reference", "native"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny")


def load(model: Path, executor: str = "reference", **options) -> Engine:
    return load_engine(EngineConfig(model=str(model), executor=executor, threads=1, **options))


def test_the_engine_says_what_it_loaded(tiny):
    info = load(tiny, max_model_len=96, max_num_seqs=2).info
    assert (info.model, info.executor, info.context, info.vocab) == ("tiny", "reference", 96, VOCAB)
    assert (info.pages, info.page_size) == ([CachePages(None, 12, 12, 0)], 16)
    assert (info.kv_format, info.weight_format) == ("bf16", "fp32")
    assert info.kv_bytes == 13 * 16 * 2 * 2 * 2 * 16 * 2  # pages, tokens, layers, K and V, heads, dimensions, bytes
    assert info.weight_bytes > 0


def test_pages_are_int8_beside_quantised_weights_unless_said_otherwise(tiny):
    assert load(tiny, weight_format=WeightFormat.INT8).info.kv_format == "int8"
    assert load(tiny, weight_format=WeightFormat.INT8, activations=ActivationFormat.FP32).info.kv_format == "bf16"
    assert load(tiny, weight_format=WeightFormat.INT8, kv_format=KVFormat.BF16).info.kv_format == "bf16"


def test_formats_can_be_chosen(tiny):
    info = load(tiny, weight_format=WeightFormat.INT8, kv_format=KVFormat.FP32, served_name="mine").info
    assert (info.model, info.weight_format, info.kv_format) == ("mine", "int8", "fp32")


@pytest.mark.parametrize("weight_format", [WeightFormat.FP32, WeightFormat.INT4])
@pytest.mark.parametrize("executor", EXECUTORS)
def test_greedy_answers_do_not_depend_on_batch_chunks_preemption_or_cache(tiny, executor, weight_format):
    rng = random.Random(0)
    shared = [rng.randrange(VOCAB) for _ in range(40)]
    prompts = {f"r{i}": shared[: 7 * i] + [rng.randrange(VOCAB) for _ in range(5)] for i in range(6)}
    requests = [Submit(name, prompt, greedy(40, ignore_eos=True)) for name, prompt in prompts.items()]
    options = {"executor": executor, "weight_format": weight_format, "max_model_len": 96}
    single = load(tiny, max_num_seqs=1, prefix_caching=False, **options)
    alone = {request.id: run(single, request)[request.id].ids for request in requests}
    page_bytes = single.info.kv_bytes // (single.info.pages[0].total + 1)
    crowded = load(tiny, max_num_seqs=6, max_num_batched_tokens=13, kv_memory_bytes=14 * page_bytes, **options)
    together = run(crowded, *requests)
    assert crowded.stats().preemptions > 0
    assert crowded.stats().cached_tokens > 0
    assert {name: together[name].ids for name in prompts} == alone


def test_a_model_that_gives_no_numbers_does_not_start(tmp_path):
    with pytest.raises(NumericsError, match="cannot produce a token"):
        load(write_model(tmp_path / "broken", nan_in="model.norm.weight"))


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("params", [greedy(30, ignore_eos=True), SamplingParams(max_tokens=30, seed=1)])
def test_a_token_that_breaks_the_model_breaks_its_own_request_only(tiny, tmp_path, executor, params):
    harmless = greedy(30, ignore_eos=True)
    healthy = run(load(tiny, executor), Submit("b", [1, 2, 3], harmless))["b"].ids
    bad = next(token for token in range(4, VOCAB) if token not in healthy)
    broken = load(
        write_model(tmp_path / "broken", nan_in="model.embed_tokens.weight", nan_row=bad), executor, max_num_seqs=2
    )
    answers = run(broken, Submit("a", [1, bad, 2] * 9, params), Submit("b", [1, 2, 3], harmless))
    failure = answers["a"].failure
    assert isinstance(failure, Failed)
    assert failure.kind == "NumericsError"
    assert answers["b"].ids == healthy
    # The next owner of the failed request's pages must not see what is left in them.
    assert run(broken, Submit("c", [1, 2, 3], harmless))["c"].ids == healthy


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"executor": "cuda9"}, ConfigError, "native, reference, null"),
        ({"model": "/nowhere/m.gguf"}, CheckpointError, "/nowhere/m.gguf"),
        ({"max_model_len": 10**9}, ConfigError, "max_model_len"),
        ({"kv_memory_bytes": 1}, ConfigError, "kv_memory_bytes"),
    ],
)
def test_what_cannot_be_loaded_is_refused(tiny, options, error, text):
    with pytest.raises(error, match=text):
        load_engine(EngineConfig(**({"model": str(tiny), "executor": "reference"} | options)))


def test_closing_twice_is_once(tiny):
    for engine in (null_engine(), *(load(tiny, executor) for executor in EXECUTORS)):
        engine.close()
        engine.close()


def test_the_real_model_answers_alike_alone_and_among_64_mixed_neighbours(smollm2):
    rng = random.Random(5)

    def prompt(length: int) -> list[int]:
        return [rng.randrange(1000, 20_000) for _ in range(length)]

    def engine(**options) -> Engine:
        return load_engine(EngineConfig(model=str(smollm2), max_model_len=256, **options))

    wanted = {f"w{i}": prompt(rng.randrange(3, 80)) for i in range(4)}
    single = engine(max_num_seqs=1, prefix_caching=False)
    alone = {name: run(single, Submit(name, ids, greedy(12)))[name].ids for name, ids in wanted.items()}
    single.close()
    noise = [
        Submit(
            f"n{i}",
            prompt(rng.randrange(1, 60)),
            SamplingParams(max_tokens=rng.randrange(1, 16), temperature=rng.choice([0, 1]), top_p=0.9, seed=i),
        )
        for i in range(64)
    ]
    crowd = engine(max_num_seqs=64, max_num_batched_tokens=96)
    requests = [*(Submit(name, ids, greedy(12)) for name, ids in wanted.items()), *noise]
    rng.shuffle(requests)
    together = run(crowd, *requests)
    assert {name: together[name].ids for name in wanted} == alone
    crowd.close()
