"""Answers are bit for bit those without drafts, whatever the drafts are and whatever a request asks for."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from tests.server.byte_model import CHARACTERS, END, VOCAB, write_byte_model

from trimaran.base.grammar import Grammar
from trimaran.base.messages import Submit
from trimaran.base.sampling import SamplingParams
from trimaran.checkpoint import open_checkpoint
from trimaran.engine.config import EngineConfig
from trimaran.engine.constraints.protocol import Vocabulary
from trimaran.engine.constraints.trie import TokenTrie
from trimaran.engine.engine import Engine
from trimaran.engine.load import load_engine
from trimaran.kernels.null import NullModel
from trimaran.text.tokenizer import open_tokenizer

from .drafting import tell, told
from .driving import Answer, Answers, null_engine, run
from .pooled import Pair
from .tiny_model import write_model

ITEM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "kind": {"enum": ["small", "smaller", "large"]},
        "sizes": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
    },
    "required": ["name", "kind", "sizes"],
    "additionalProperties": False,
}
TAGS = {"structures": [{"begin": "<|im_start|>", "schema": ITEM, "end": "!"}], "triggers": ["<|im_start|>"]}
ONE_WAY = Grammar("lark", 'start: text "." text "end"\ntext[max_tokens=12]: /[a-z]{1,30}/')  # cannot go back
GRAMMARS = (
    None,
    None,
    None,
    Grammar("json_schema", json.dumps({"type": "array", "items": ITEM, "minItems": 2, "maxItems": 4})),
    Grammar("regex", "(abc|abd|xyz){3,20}!?"),
    Grammar("lark", 'start: (WORD ",")* "end"\nWORD: /[a-c]{1,9}/'),
    ONE_WAY,
    Grammar("structural_tag", json.dumps(TAGS)),
    Grammar("constraint", '{"name": "trie"}'),
)
CONTEXT = 256


def trie(vocabulary: Vocabulary) -> TokenTrie:
    return TokenTrie(vocabulary, [[40 + n % 7, *range(n % 11, n % 11 + 12), 60 + n] for n in range(30)])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_byte_model(tmp_path_factory.mktemp("bytes"))


@pytest.fixture(scope="module")
def weights(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that computes, with a tokenizer."""
    directory = write_model(tmp_path_factory.mktemp("tiny") / "model", vocab=VOCAB, context=CONTEXT)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(files / name, directory)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "eos_token_id": END}))
    return directory


def offering(engine: Engine) -> Engine:
    engine.constraints.add("trie", trie)
    return engine


def talking(files: Path, **options: Any) -> Engine:
    """An engine on the null executor that knows what its tokens say."""
    windows = options.pop("windows", (None,))
    null = NullModel(vocab=VOCAB, context=CONTEXT, eos_id=END, eos_one_in=30, windows=windows)
    return offering(null_engine(null=null, model=str(files), seed=1, max_num_seqs=12, **options))


def computing(weights: Path, executor: str, **options: Any) -> Engine:
    common = {"model": str(weights), "executor": executor, "threads": 2, "max_num_seqs": 12, "seed": 1}
    return offering(load_engine(EngineConfig.from_json({**common, **options})))


def ready(engine: Engine, asked: Sequence[Submit]) -> Engine:
    """With all grammars compiled, so that what runs beside what does not depend on how long that takes."""
    for request in asked:
        if request.sampling.grammar is not None:
            short = structs.replace(request.sampling, max_tokens=1)
            run(engine, structs.replace(request, prompt=[1], sampling=short))
    engine.forget_counts()
    return engine


sampling = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.7, 1.0, 2.0]),
    seed=st.integers(0, 5),
    max_tokens=st.integers(1, 60),
    min_tokens=st.sampled_from([0, 0, 1]),
    top_k=st.sampled_from([0, 0, 5]),
    top_p=st.sampled_from([1.0, 0.9]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.0, 1.5]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.4]),
    logit_bias=st.sampled_from([{}, {}, {7: 3.0, END: -100.0}]),
    stop_token_ids=st.sampled_from([(), (), tuple(range(0, VOCAB, 11))]),
    logprobs=st.sampled_from([None, None, 0, 3]),
    grammar=st.sampled_from(GRAMMARS),
)
requests = st.lists(st.tuples(st.integers(1, 90), sampling, st.integers(0, 1)), min_size=1, max_size=6)
rights = st.lists(st.integers(0, 9), min_size=1, max_size=5)


def submits(wanted: Sequence[tuple[int, SamplingParams, int]]) -> list[Submit]:
    made = []
    for number, (length, params, priority) in enumerate(wanted):
        made.append(Submit(str(number), [*range(length)], params, priority=priority))
    return made


def same(got: Answers, wanted: Answers) -> None:
    """Of every request the tokens, their log-probabilities, and how it ended."""

    def said(answer: Answer) -> tuple[Any, ...]:
        return answer.tokens, answer.finish, answer.stopped_by, answer.failure and answer.failure.message

    assert {name: said(answer) for name, answer in got.items()} == {name: said(a) for name, a in wanted.items()}


@settings(max_examples=80, deadline=None)
@given(
    requests,
    rights,
    st.integers(18, 60),
    st.booleans(),
    st.booleans(),
    st.sampled_from([(None,), (None,), (None, 32), (32,)]),
)
def test_whatever_is_asked(
    files: Path,
    wanted: list[tuple[int, SamplingParams, int]],
    right: list[int],
    pages: int,
    overlap: bool,
    reuse: bool,
    windows: tuple[int | None, ...],
) -> None:
    asked = submits(wanted)
    plain = talking(files, windows=windows)
    answers = run(plain, *asked)
    plain.close()
    engine = talking(
        files,
        windows=windows,
        pages=pages * len(windows),
        speculative_ngram=8,
        overlap=overlap,
        prefix_caching=reuse,
    )
    same(told(engine, asked, answers, right), answers)
    engine.cache.check()
    assert engine.cache.unused
    engine.close()


@settings(max_examples=25, deadline=None)
@given(requests, rights, st.booleans())
def test_in_pools(files: Path, wanted: list[tuple[int, SamplingParams, int]], right: list[int], overlap: bool) -> None:
    asked = submits(wanted)
    plain = talking(files)
    answers = run(plain, *asked)
    plain.close()
    prefill, decode = (
        talking(files, role=role, overlap=overlap, speculative_ngram=8) for role in ("prefill", "decode")
    )
    pair = Pair(prefill, decode)  # type: ignore[arg-type]  # as their roles say
    for request in asked:
        pair.submit(request)
        tell(decode, request, answers[request.id], right)
    same(pair.run(), answers)
    prefill.close()
    decode.close()


@settings(max_examples=25, deadline=None)
@given(requests, rights, st.integers(1, 12), st.booleans())
def test_a_cancel_leaves_the_others_alone(
    files: Path, wanted: list[tuple[int, SamplingParams, int]], right: list[int], steps: int, overlap: bool
) -> None:
    asked = submits(wanted)
    plain = talking(files)
    answers = run(plain, *asked)
    plain.close()
    engine = talking(files, speculative_ngram=8, overlap=overlap)
    got = Answers()
    for request in asked:
        engine.submit(request)
        tell(engine, request, answers[request.id], right)
    for _ in range(steps):
        got.take(engine.step())
    engine.cancel("0")
    while not engine.idle:
        got.take(engine.step())
    first, whole = got.pop("0"), answers.pop("0")
    assert first.tokens == whole.tokens[: len(first.tokens)]
    same(got, answers)
    assert engine.cache.unused
    engine.close()


MIX = [
    SamplingParams(temperature=0, max_tokens=50, ignore_eos=True),
    SamplingParams(temperature=0, max_tokens=50, logprobs=2, frequency_penalty=0.3),
    SamplingParams(seed=1, max_tokens=50, repetition_penalty=1.2, logprobs=0),
    SamplingParams(seed=2, max_tokens=50, temperature=0.6, top_p=0.8, min_tokens=20),
    *(SamplingParams(seed=n, max_tokens=50, temperature=n / 2, grammar=grammar) for n, grammar in enumerate(GRAMMARS)),
]


@pytest.mark.parametrize("executor", ["native", "reference"])
def test_a_model_says_the_same_bits(weights: Path, executor: str) -> None:
    asked = [Submit(str(n), [5, 6, 7, 8] * (2 + n % 3), params) for n, params in enumerate(MIX)]
    plain, drafting = (ready(computing(weights, executor, speculative_ngram=most), asked) for most in (0, 6))
    answers = run(plain, *asked)
    same(told(drafting, asked, answers, [4, 0, 8]), answers)
    assert drafting.stats().accepted_tokens > 0
    assert drafting.stats().steps < plain.stats().steps
    plain.close()
    drafting.close()


def test_both_samplers_say_the_same(weights: Path) -> None:
    asked = [Submit(str(n), [5, 6, 7, 8], params) for n, params in enumerate(MIX)]
    engines = [computing(weights, executor, speculative_ngram=6) for executor in ("native", "reference")]
    native, reference = (run(engine, *asked) for engine in engines)
    assert {name: answer.ids for name, answer in native.items()} == {n: a.ids for n, a in reference.items()}
    for engine in engines:
        engine.close()


def test_the_real_model_says_the_same_bits(smollm2: Path) -> None:
    """With memory for half of them, and drafts of its own, of which most are right: the prompt is a list."""
    with open_checkpoint(smollm2) as checkpoint:
        tokenizer = open_tokenizer(checkpoint)
    listed = tokenizer.encode_prompt("Items:\n" + "".join(f'{{"name":"n{n}","kind":"small"}}\n' for n in range(9)))
    mixed = [params for params in MIX if params.grammar is None or params.grammar.kind in ("json_schema", "regex")]
    asked = [Submit(str(n), listed[n % 3 :], params) for n, params in enumerate(mixed)]
    common = EngineConfig(model=str(smollm2), seed=1, max_num_seqs=24, max_model_len=256)
    plain = load_engine(replace(common, kv_memory_bytes=1 << 26))
    drafting = ready(load_engine(replace(common, kv_memory_bytes=1 << 23, speculative_ngram=8)), asked)
    answers, got = run(plain, *asked), run(drafting, *asked)
    same(got, answers)
    stats = drafting.stats()
    assert stats.accepted_tokens > stats.drafted_tokens // 2 > 20
    assert stats.preemptions > 0
    plain.close()
    drafting.close()


def test_what_a_grammar_forces_is_drafted(files: Path) -> None:
    text = "a text that is forced, word for word"
    plain, drafting = (talking(files, speculative_ngram=most) for most in (0, 8))
    asked = Submit("a", [1, 2], SamplingParams(max_tokens=60, grammar=Grammar("choice", json.dumps([text]))))
    answers, got = run(plain, asked), run(drafting, asked)
    same(got, answers)
    assert "".join(CHARACTERS[token] for token in got["a"].ids) == text
    stats = drafting.stats()
    assert stats.accepted_tokens == stats.drafted_tokens > len(text) * 3 // 4
    assert stats.steps < plain.stats().steps // 3
    plain.close()
    drafting.close()


def test_a_draft_is_cut_where_the_grammar_ends_it(files: Path) -> None:
    plain, drafting = (talking(files, speculative_ngram=most) for most in (0, 8))
    asked = Submit("a", [1, 2], SamplingParams(max_tokens=60, seed=1, grammar=Grammar("regex", "[ab]{40}")))
    answers = run(plain, asked)
    same(told(drafting, [asked], answers, [2]), answers)
    stats = drafting.stats()
    assert stats.drafted_tokens == stats.accepted_tokens > 0, "what is not in the grammar takes no row"
    plain.close()
    drafting.close()


@pytest.mark.parametrize("grammar", [Grammar("constraint", '{"name": "trie"}'), ONE_WAY])
def test_constraints_that_do_not_go_back_take_no_drafts(files: Path, grammar: Grammar) -> None:
    plain, drafting = (talking(files, speculative_ngram=most) for most in (0, 8))
    asked = Submit("a", [1, 2], SamplingParams(max_tokens=60, seed=1, grammar=grammar))
    answers = run(plain, asked)
    assert answers["a"].failure is None
    same(told(drafting, [asked], answers, [8]), answers)
    assert drafting.stats().drafted_tokens <= 8, "it takes a draft to find out, and no other"
    assert drafting.stats().steps == plain.stats().steps
    plain.close()
    drafting.close()


def test_a_row_that_is_not_finite_ends_a_draft(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those before it were said, and the request fails where it would without drafts."""
    asked = Submit("a", [1, 2], SamplingParams(max_tokens=30, seed=1, ignore_eos=True))
    plain, drafting = (talking(files, speculative_ngram=most) for most in (0, 8))
    answers = run(plain, asked)
    run_step = type(drafting.executor).run

    def broken(self: Any, step: Any) -> Any:
        outputs = run_step(self, step)
        outputs.logits[[int(step.contexts[0]) + row + 1 == 13 for row in step.logits_rows]] = np.nan
        return outputs

    monkeypatch.setattr(type(drafting.executor), "run", broken)
    got = told(drafting, [asked], answers, [8])["a"]
    assert got.tokens == answers["a"].tokens[: 13 - 2]
    assert got.failure is not None
    assert "not finite" in got.failure.message
    assert drafting.cache.unused
    plain.close()
    drafting.close()
