"""``LLM`` on the real small model, with the native executor."""

import json
import os
import signal

import pytest

from trimaran import LLM, Grammar, SamplingParams
from trimaran.base.errors import ConfigError, ContextLengthError, RequestError, TrimaranError
from trimaran.engine.constraints.trie import TokenTrie

PROMPTS = ["The capital of France is", "def add(a, b):\n    return", "Once upon a time"]
GREEDY = SamplingParams(temperature=0, max_tokens=12)


@pytest.fixture(scope="module")
def llm(smollm2):
    with LLM(str(smollm2), max_model_len=512, max_num_seqs=4, max_waiting=2) as llm:
        yield llm


@pytest.fixture(autouse=True)
def nothing_is_left_behind(request):
    """After each test, the engine runs nothing and all its pages can be taken."""
    yield
    if "llm" in request.fixturenames:
        engine = request.getfixturevalue("llm")._engine
        engine.step()
        stats = engine.stats()
        assert (stats.running, stats.waiting) == (0, 0)
        assert all(pages.free + pages.cached == pages.total for pages in stats.pages)


def test_one_prompt_or_several_as_text_or_ids(llm):
    one = llm.generate(PROMPTS[0], GREEDY)
    assert len(one) == 1
    assert one[0].text.startswith(" Paris")
    assert one[0].prompt_ids == tuple(llm.tokenizer.encode(PROMPTS[0]))
    assert one[0].outputs[0].finish_reason == "length"
    assert len(one[0].outputs[0].token_ids) == 12

    def texts(prompts):
        return [completion.text for completion in llm.generate(prompts, GREEDY)]

    several = texts(PROMPTS)
    assert several[0] == one[0].text
    ids = [llm.tokenizer.encode(prompt) for prompt in PROMPTS]
    assert texts(ids) == several
    assert texts(ids[1]) == several[1:2]
    assert texts([PROMPTS[2], ids[0]]) == [several[2], several[0]]
    assert texts([]) == []


def test_an_answer_does_not_depend_on_its_neighbours(llm):
    alone = [llm.generate(prompt, GREEDY)[0].text for prompt in PROMPTS]
    assert [completion.text for completion in llm.generate(PROMPTS * 2, GREEDY)] == alone * 2


def test_each_prompt_may_have_its_own_parameters(llm):
    params = [SamplingParams(temperature=0, max_tokens=n) for n in (1, 2, 3)]
    results = llm.generate(PROMPTS, params)
    assert [len(completion.outputs[0].token_ids) for completion in results] == [1, 2, 3]
    with pytest.raises(RequestError, match="2 sampling parameters"):
        llm.generate(PROMPTS, params[:2])


def test_streams_add_up_to_the_whole(llm):
    params = SamplingParams(temperature=0.9, seed=3, n=2, max_tokens=10, logprobs=1, stop=("the",))
    whole = llm.generate(PROMPTS, params)
    deltas = list(llm.generate(PROMPTS, params, stream=True))
    for prompt, completion in enumerate(whole):
        for choice, output in enumerate(completion.outputs):
            parts = [delta for delta in deltas if (delta.prompt, delta.choice) == (prompt, choice)]
            assert "".join(part.text for part in parts) == output.text
            assert tuple(token for part in parts for token in part.token_ids) == output.token_ids
            assert tuple(token for part in parts for token in part.logprobs) == output.logprobs
            ends = [(part.finish_reason, part.stop_reason) for part in parts if part.finish_reason]
            assert ends == [(output.finish_reason, output.stop_reason)]
            assert parts[-1].finish_reason


def test_choices_differ_and_each_has_a_seed_of_its_own(llm):
    def texts(**more):
        params = SamplingParams(temperature=1, max_tokens=10, **more)
        return [output.text for output in llm.generate(PROMPTS[2], params)[0].outputs]

    three = texts(n=3, seed=7)
    assert len(set(three)) == 3
    assert texts(n=3, seed=7) == three
    assert texts(seed=8) == three[1:2]


def test_stop_strings_and_stop_tokens(llm):
    (whole,) = llm.generate(PROMPTS[0], GREEDY)[0].outputs
    text, word = whole.text, llm.tokenizer.decode(whole.token_ids[-3:-2])  # a word that comes near the end
    (output,) = llm.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=12, stop=(word,)))[0].outputs
    assert (output.text, output.finish_reason, output.stop_reason) == (text.split(word)[0], "stop", word)
    assert llm.tokenizer.decode(output.token_ids) == output.text

    end = llm.tokenizer.encode(word)[0]
    (output,) = llm.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=12, stop_token_ids=(end,)))[0].outputs
    assert (output.text, output.finish_reason, output.stop_reason) == (text.split(word)[0], "stop", end)


def test_logprobs_only_when_asked_for(llm):
    (output,) = llm.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=3, logprobs=2))[0].outputs
    assert [token.id for token in output.logprobs] == list(output.token_ids)
    for token in output.logprobs:
        assert token.logprob < 0
        assert token.top[0] == (token.id, token.logprob)
        assert len(token.top) == 2
    assert llm.generate(PROMPTS[0], GREEDY)[0].outputs[0].logprobs is None


def test_a_prompt_that_was_seen_is_cached(llm):
    prompt = "A sentence that nobody has asked about before, long enough for a page: " + "river " * 40
    first, second = (llm.generate(prompt, GREEDY)[0] for _ in range(2))
    assert first.cached_tokens == 0
    assert second.cached_tokens >= 32
    assert second.text == first.text


def test_chat_goes_through_the_template(llm):
    conversation = [{"role": "user", "content": "What is 2 + 2?"}]
    (answer,) = llm.chat(conversation, GREEDY)
    decoded = llm.tokenizer.decode(answer.prompt_ids, skip_special=False)
    assert decoded.endswith("<|im_start|>user\nWhat is 2 + 2?<|im_end|>\n<|im_start|>assistant\n")
    assert [c.text for c in llm.chat([conversation, conversation], GREEDY)] == [answer.text] * 2
    streamed = llm.chat(conversation, GREEDY, stream=True)
    assert "".join(delta.text for delta in streamed) == answer.text
    with pytest.raises(RequestError, match="enable_thinking"):
        llm.chat(conversation, GREEDY, enable_thinking=False)


def test_answers_in_a_schema_a_choice_or_a_constraint_of_one_s_own(llm):
    schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"]}
    grammars = [
        Grammar("json_schema", json.dumps({**schema, "additionalProperties": False})),
        Grammar("choice", '["Paris", "Rome"]'),
        Grammar("constraint", '{"name": "ids"}'),
    ]
    ids = [llm.tokenizer.encode(text) for text in ("A-17", "B-23")]
    llm.add_constraint("ids", lambda vocabulary: TokenTrie(vocabulary, ids))
    params = [SamplingParams(max_tokens=60, seed=3, grammar=grammar) for grammar in grammars]
    said = llm.generate([PROMPTS[0]] * 3, params)
    assert [completion.outputs[0].finish_reason for completion in said] == ["stop"] * 3
    assert set(json.loads(said[0].text)) == {"city"}
    assert said[1].text == "Paris"
    assert said[2].text in ("A-17", "B-23")
    streamed = "".join(delta.text for delta in llm.generate(PROMPTS[0], params[0], stream=True))
    assert streamed == said[0].text
    with pytest.raises(RequestError, match="uniqueItems"):
        llm.generate(PROMPTS[0], SamplingParams(grammar=Grammar("json_schema", '{"uniqueItems": true}')))


def test_an_answer_ends_with_its_turn(llm):
    (answer,) = llm.chat([{"role": "user", "content": "Say only: yes"}], SamplingParams(temperature=0, max_tokens=200))
    assert answer.outputs[0].finish_reason == "stop"
    assert answer.outputs[0].stop_reason is None


@pytest.mark.parametrize(
    ("prompt", "params", "error"),
    [
        ([81] * 600, GREEDY, ContextLengthError),
        ([81] * 505, GREEDY, ContextLengthError),
        ([10**9], GREEDY, RequestError),
        ([-1], GREEDY, RequestError),
        ("", GREEDY, RequestError),
        ("\ud800", GREEDY, RequestError),
        ("x", SamplingParams(stop_token_ids=(10**9,)), RequestError),
    ],
)
def test_one_bad_prompt_raises_its_error_and_cancels_the_others(llm, prompt, params, error):
    with pytest.raises(error):
        llm.generate([PROMPTS[0], prompt, PROMPTS[1]], params)
    assert llm.generate(PROMPTS[0], GREEDY)[0].text.startswith(" Paris")


def test_a_text_far_beyond_the_context_is_not_tokenised(llm, monkeypatch):
    monkeypatch.setattr(type(llm.tokenizer), "encode", None)
    text = "x" * 10**6
    with pytest.raises(ContextLengthError, match="at least"):
        llm.generate(text)
    with pytest.raises(ContextLengthError, match="at least"):
        llm.chat([{"role": "user", "content": text}])


def test_more_prompts_than_the_engine_queues(llm):
    results = llm.generate([f"Number {i} is" for i in range(20)], SamplingParams(temperature=0, max_tokens=2))
    assert [len(completion.outputs[0].token_ids) for completion in results] == [2] * 20


def test_a_stream_given_up_is_cancelled(llm):
    for delta in llm.generate(PROMPTS, SamplingParams(temperature=0, ignore_eos=True), stream=True):
        if delta.prompt == 2:
            break
    del delta
    assert llm.generate(PROMPTS[0], GREEDY)[0].text.startswith(" Paris")


def test_streams_may_run_side_by_side(llm):
    alone = [llm.generate(prompt, GREEDY)[0].text for prompt in PROMPTS[:2]]
    left, right = (llm.generate(prompt, GREEDY, stream=True) for prompt in PROMPTS[:2])
    texts = ["", ""]
    for a, b in zip(left, right, strict=True):
        texts[0] += a.text
        texts[1] += b.text
    assert texts == alone


def test_ctrl_c_cancels_and_leaves_the_engine_usable(llm, monkeypatch):
    steps = 0
    step = llm._engine.step

    def interrupted_step():
        nonlocal steps
        steps += 1
        if steps == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return step()

    with monkeypatch.context() as patch:
        patch.setattr(llm._engine, "step", interrupted_step)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(PROMPTS, SamplingParams(temperature=0, ignore_eos=True))
    assert steps == 3
    assert llm.generate(PROMPTS[0], GREEDY)[0].text.startswith(" Paris")


def test_a_closed_llm_says_so(smollm2):
    with LLM(str(smollm2), max_model_len=64, max_num_seqs=1) as llm:
        stream = llm.generate(PROMPTS[0], GREEDY, stream=True)
        next(stream)
    llm.close()
    with pytest.raises(TrimaranError, match="closed"):
        llm.generate(PROMPTS[0])
    with pytest.raises(TrimaranError, match="closed"):
        next(stream)


def test_wrong_options_are_found_before_a_model_is_looked_for():
    with pytest.raises(ConfigError, match="max_model_length"):
        LLM("no-such-model", max_model_length=512)
    with pytest.raises(ConfigError, match="page_size"):
        LLM("no-such-model", page_size=17)
