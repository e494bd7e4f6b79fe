"""One engine whose prompts meet weights of another format than generated tokens do."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.families import write_checkpoint
from trimaran.base.errors import ConfigError
from trimaran.base.messages import Submit
from trimaran.base.sampling import SamplingParams
from trimaran.checkpoint import packs
from trimaran.checkpoint.verify import write_model_manifest
from trimaran.engine.canary import prove
from trimaran.engine.config import EngineConfig
from trimaran.engine.engine import Engine
from trimaran.engine.load import load_engine
from trimaran.engine.plan import StepPlan

from .driving import PAGE, greedy, run
from .live_memory import flip_everywhere
from .pooled import check_whole
from .test_pooled import model_pair
from .tiny_model import VOCAB, write_model

PAGE_BYTES = 2 * 2 * 16 * (2 * 16 + 2 * 4)  # layers, heads, tokens; int8 keys and values of 16 dimensions, scales
BOTH = {"executor": "native", "threads": 1, "max_num_batched_tokens": 64, "max_num_seqs": 6, "kv_format": "int8"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "m")


def open_engine(path: Path, prefill: str = "int8", decode: str | None = "int4z", **options: Any) -> Engine:
    formats = {"prefill_weight_format": prefill, "weight_format": decode}
    engine = load_engine(EngineConfig.from_json({"model": str(path), **BOTH, **formats, **options}))
    start = engine.runner.start

    def watched(plan: StepPlan, *, want_logits: bool) -> None:
        for number, (sequence, _, first, rows, *_) in enumerate(plan.chunks):
            generated = first >= sequence.prompt_length
            assert generated or first + rows <= sequence.prompt_length, "rows of one kind"
            assert plan.decoding is not None
            assert generated == (number < plan.decoding)
        start(plan, want_logits=want_logits)

    engine.runner.start = watched  # type: ignore[method-assign]  # of this engine alone
    return engine


def requests(count: int = 5, tokens: int = 24) -> list[Submit]:
    """Prompts of 1 to some 80 tokens, one of them the beginning of others, greedy and sampled."""
    turn = [3 + k % 90 for k in range(PAGE + 1)]
    return [
        Submit(
            str(n),
            (turn + [5 + (n * k) % 80 for k in range(16 * n)])[: 81 if n else 1],
            SamplingParams(temperature=(0.0, 0.8)[n % 2], seed=n, max_tokens=tokens, ignore_eos=True),
        )
        for n in range(count)
    ]


def ids(engine: Engine, submits: list[Submit]) -> dict[str, list[int]]:
    answers = run(engine, *submits)
    assert not [answer.failure for answer in answers.values() if answer.failure]
    check_whole(engine)
    return {name: answer.ids for name, answer in answers.items()}


@pytest.mark.parametrize("executor", ["native", "reference"])
@pytest.mark.parametrize("formats", [("int8", "int4z"), ("bf16", "int8"), ("int4", "bf16"), ("codebook4", "fp8")])
def test_the_tokens_are_those_of_two_pools(model, executor, formats):
    prefill, decode = ({"weight_format": fmt} for fmt in formats)
    engine = open_engine(model, *formats, executor=executor)
    pair = model_pair(model, prefill, decode, **BOTH | {"executor": executor})
    submits = requests(tokens=12)
    pooled = {name: answer.ids for name, answer in pair.run(*submits).items()}
    assert ids(engine, submits) == pooled
    for fmt in formats:
        alone = load_engine(EngineConfig.from_json({"model": str(model), "weight_format": fmt, **BOTH}))
        assert ids(alone, submits) != pooled, "both formats have a say"


@pytest.mark.parametrize("family", ["gemma3_text", "qwen3_moe", "deepseek_v3"])
def test_experts_windows_and_latents_have_two_formats_too(tmp_path, family):
    path = write_checkpoint(family, tmp_path / family)
    both = {"threads": 1, "max_num_batched_tokens": 32, "max_num_seqs": 4, "kv_format": "bf16"}
    submits = [Submit(str(n), [3 + (n + 5 * k) % 60 for k in range(9 + 11 * n)], greedy(8)) for n in range(3)]
    pair = model_pair(path, {"weight_format": "int8"}, {"weight_format": "bf16"}, **both)
    pooled = {name: answer.ids for name, answer in pair.run(*submits).items()}
    for executor in ("native", "reference"):
        engine = open_engine(path, "int8", "bf16", **both | {"executor": executor})
        if executor == "native":
            assert ids(engine, submits) == pooled
        else:
            assert run(engine, *submits).keys() == pooled.keys()
        engine.close()


@pytest.fixture(scope="module")
def alone(model: Path) -> dict[str, list[int]]:
    """Each request by itself, on an engine that has seen nothing."""
    found = {}
    for submit in requests():
        engine = open_engine(model, prefix_caching=False)
        found |= ids(engine, [submit])
        engine.close()
    return found


@settings(max_examples=25)
@given(
    st.permutations(range(5)),
    st.integers(10, 30),
    st.integers(1, 6),
    st.integers(6, 64),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0, 4]),
)
def test_answers_depend_on_the_request_alone(model, alone, order, pages, seqs, rows, caching, overlap, drafted):
    engine = open_engine(
        model,
        max_num_seqs=seqs,
        max_num_batched_tokens=max(rows, seqs),
        prefix_caching=caching,
        overlap=overlap,
        speculative_ngram=drafted,
        kv_memory_bytes=pages * PAGE_BYTES,
        max_model_len=128,
    )
    submits = requests()
    assert ids(engine, [submits[n] for n in order]) == alone
    assert ids(engine, submits) == alone, "whatever the cache holds now"
    engine.close()


def test_what_gave_way_is_computed_again_as_it_was(model, alone):
    crowded = open_engine(model, kv_memory_bytes=11 * PAGE_BYTES, max_model_len=128)
    assert ids(crowded, requests()) == alone
    assert crowded.stats().preemptions > 0


def test_drafts_are_of_generated_tokens(model):
    """A prompt that repeats itself: its last row, alone in its step, is of the prompt, and what follows is not."""
    prompt = [1, 2, 3, 4] * (PAGE // 4) + [1]
    submit = Submit("a", prompt, greedy(40, ignore_eos=True))
    plain, drafting = open_engine(model), open_engine(model, speculative_ngram=4, max_num_batched_tokens=PAGE)
    assert ids(drafting, [submit]) == ids(plain, [submit])
    assert drafting.stats().drafted_tokens > 0


def test_pages_that_decoding_has_filled_are_found_by_nobody(model):
    engine = open_engine(model)
    prompt = [5 + n for n in range(2 * PAGE)]
    first = run(engine, Submit("a", prompt, greedy(PAGE + 2, ignore_eos=True)))["a"]
    again = run(engine, Submit("b", [*prompt, 7], greedy(2)))["b"]
    longer = run(engine, Submit("c", prompt + first.ids, greedy(4)))["c"]
    assert (again.cached, longer.cached) == (2 * PAGE, 2 * PAGE)
    fresh = open_engine(model, prefix_caching=False)
    assert run(fresh, Submit("c", prompt + first.ids, greedy(4)))["c"].ids == longer.ids


def test_what_both_formats_hold_alike_is_held_once(model):
    int8, int4z = (
        load_engine(EngineConfig.from_json({"model": str(model), "weight_format": fmt, **BOTH})).info
        for fmt in ("int8", "int4z")
    )
    both = open_engine(model).info
    table = VOCAB * 64 * (1 + 2 / 32)  # int8 with its scales; coarser formats hold tables so, too
    assert int8.weight_bytes + int4z.weight_bytes - both.weight_bytes >= 2 * table
    assert both.weight_format == "prefill int8, decode int4z+int8"
    assert both.digest == int8.digest
    assert len({int8.identity, int4z.identity, both.identity}) == 3


def test_the_second_start_takes_both_formats_as_they_were_packed(tmp_path, monkeypatch):
    monkeypatch.setenv("TRIMARAN_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(packs, "FREE_PART", 1 << 40)
    path = write_model(tmp_path / "m")
    write_model_manifest(path)
    started = []
    for prefill, decode in (("int8", "int4z"), ("int8", "int4z"), ("int4z", "int8")):
        engine = open_engine(path, prefill, decode, packed_cache_bytes=1 << 24, canary_interval=60.0)
        packed = "pack" not in engine.info.phases
        started.append((packed, ids(engine, requests(3)), engine.info.weight_bytes, engine.info.weight_format))
        engine.close()
    first, second, turned = started
    assert (first[0], second[0], turned[0]) == (False, True, False)
    assert first[1:] == second[1:]
    assert turned[1] != first[1]


@pytest.mark.parametrize("place", [0.4, 0.9])  # of the packed weights: those that decode come first
def test_the_canary_meets_both_formats(model, place):
    engine = open_engine(model)
    before = prove(engine, None)
    memory = engine.executor.packed.memory  # type: ignore[attr-defined]  # of the native executor
    at = int(place * len(memory))
    assert flip_everywhere(memory[at : at + 64].tobytes(), at=8, mask=0x40) > 0
    assert prove(engine, None) != before
    engine.close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"prefill_weight_format": "int3"}, "prefill_weight_format must be one of same, auto, fp32"),
        ({"prefill_weight_format": "int8", "weight_format": "int8"}, "are both int8"),
        ({"prefill_weight_format": "auto"}, "are both auto"),
        ({"prefill_weight_format": "int8", "executor": "null"}, "no use to the null executor"),
        ({"prefill_weight_format": "int8", "role": "decode"}, "for an engine of no pool; this one's role is decode"),
    ],
)
def test_what_makes_no_sense_is_refused(options, said):
    with pytest.raises(ConfigError, match=said):
        EngineConfig.from_json(options)


def test_formats_that_come_to_the_same_are_refused(model):
    with pytest.raises(ConfigError, match="prompts would meet the same weights without it"):
        open_engine(model, "auto", "fp32")
