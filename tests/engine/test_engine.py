import random

import numpy as np
import pytest

from trimaran.base.errors import ContextLengthError, QueueFullError, RequestError
from trimaran.base.messages import Failed, Submit, Tokens
from trimaran.base.sampling import SamplingParams
from trimaran.engine.engine import Engine
from trimaran.kernels.null import NullModel

from .driving import PAGE, Answers, greedy, null_engine, run

PROMPTS = {f"r{i}": [(7 * i + j * j) % 500 for j in range(1 + 13 * i % 90)] for i in range(12)}


def check_pages(engine: Engine) -> None:
    engine._cache.check()
    assert engine._cache.unused


@pytest.fixture(scope="module")
def alone() -> dict[str, list[int]]:
    """Each prompt's greedy answer on an engine of its own."""
    return {name: run(null_engine(), Submit(name, prompt, greedy(40)))[name].ids for name, prompt in PROMPTS.items()}


@pytest.mark.parametrize("rows", [8, 17, 64, 512])
@pytest.mark.parametrize("seqs", [1, 3, 8])
def test_greedy_answers_depend_on_neither_batch_nor_chunks(alone, seqs, rows):
    engine = null_engine(max_num_seqs=seqs, max_num_batched_tokens=rows)
    answers = run(engine, *(Submit(name, prompt, greedy(40)) for name, prompt in PROMPTS.items()))
    assert {name: answer.ids for name, answer in answers.items()} == alone
    check_pages(engine)


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_greedy_answers_survive_preemption(alone, prefix_caching):
    engine = null_engine(pages=16, max_num_seqs=8, max_num_batched_tokens=64, prefix_caching=prefix_caching)
    answers = run(engine, *(Submit(name, prompt, greedy(40)) for name, prompt in PROMPTS.items()))
    assert engine.stats().preemptions > 0
    assert {name: answer.ids for name, answer in answers.items()} == alone
    check_pages(engine)


def test_greedy_answers_do_not_depend_on_mixed_neighbours_and_cancels(alone):
    engine = null_engine(pages=24, max_num_seqs=6, max_num_batched_tokens=48)
    rng = random.Random(1)
    answers = Answers()
    wanted = [Submit(name, prompt, greedy(40)) for name, prompt in PROMPTS.items()]
    noise = [
        Submit(
            f"noise{i}",
            [rng.randrange(500) for _ in range(rng.randrange(1, 120))],
            SamplingParams(max_tokens=rng.randrange(1, 60), temperature=rng.random() * 2, top_p=0.9, logprobs=2),
            priority=rng.randrange(-1, 2),
        )
        for i in range(60)
    ]
    queue = wanted + noise
    rng.shuffle(queue)
    while queue or not engine.idle:
        for _ in range(rng.randrange(3)):
            if queue:
                engine.submit(queue.pop())
        if rng.random() < 0.1:
            engine.cancel(f"noise{rng.randrange(60)}")
        answers.take(engine.step())
    assert {name: answers[name].ids for name in PROMPTS} == alone
    assert any(answer.finish == "cancelled" for answer in answers.values())
    assert engine.stats().preemptions > 0
    check_pages(engine)


def test_a_cache_hit_gives_the_same_tokens_and_is_counted():
    engine = null_engine()
    prompt = list(range(50))
    first = run(engine, Submit("a", prompt, greedy()))["a"]
    second = run(engine, Submit("b", prompt, greedy()))["b"]
    assert (first.cached, second.cached) == (0, 48)
    assert first.ids == second.ids
    assert engine.stats().cached_tokens == 48
    assert engine.stats().prompt_tokens == 100


def test_a_prompt_that_is_cached_entirely_still_answers():
    engine = null_engine()
    prompt = list(range(3 * PAGE))
    first = run(engine, Submit("a", prompt, greedy()))["a"]
    second = run(engine, Submit("b", prompt, greedy()))["b"]
    assert second.cached == 2 * PAGE, "the last page is computed again"
    assert first.ids == second.ids


def test_an_answer_is_a_prefix_for_the_next_turn():
    engine = null_engine()
    prompt = list(range(30))
    answer = run(engine, Submit("a", prompt, greedy(20)))["a"].ids
    assert run(engine, Submit("b", [*prompt, *answer, 1, 2], greedy(4)))["b"].cached == 3 * PAGE


def test_salts_and_a_disabled_cache_share_nothing():
    engine = null_engine()
    prompt = list(range(50))
    run(engine, Submit("a", prompt, greedy(), salt="x"))
    assert run(engine, Submit("b", prompt, greedy(), salt="y"))["b"].cached == 0
    engine = null_engine(prefix_caching=False)
    run(engine, Submit("a", prompt, greedy()))
    assert run(engine, Submit("b", prompt, greedy()))["b"].cached == 0
    [pages] = engine.stats().pages
    assert pages.free == pages.total


def test_cancel_frees_pages_before_the_next_step():
    engine = null_engine()
    engine.submit(Submit("a", list(range(100)), greedy(100)))
    engine.step()
    [pages] = engine.stats().pages
    assert pages.free < pages.total
    engine.cancel("a")
    [pages] = engine.stats().pages
    assert pages.free + pages.cached == pages.total
    assert not engine.idle
    *_, end = engine.step()
    assert isinstance(end, Tokens)
    assert (end.id, end.finish, end.tokens) == ("a", "cancelled", [])
    assert engine.idle
    engine.cancel("a")  # once more, and for ids that never were
    engine.cancel("nobody")
    assert engine.idle


def test_a_waiting_request_can_be_cancelled():
    engine = null_engine(max_num_seqs=1)
    engine.submit(Submit("a", [1], greedy(50)))
    engine.step()
    engine.submit(Submit("b", [1], greedy(50)))
    engine.cancel("b")
    answers = Answers()
    answers.take(engine.step())
    assert answers["b"].finish == "cancelled"
    assert "a" in answers


def test_priorities_decide_who_runs():
    engine = null_engine(max_num_seqs=1)
    engine.submit(Submit("low", [1], greedy(5), priority=1))
    engine.submit(Submit("high", [2], greedy(5), priority=0))
    order = []
    while not engine.idle:
        order += [message.id for message in engine.step()]
    assert order == ["high"] * 5 + ["low"] * 5


def test_the_answer_ends_at_max_tokens_or_at_the_context():
    engine = null_engine(context=64)
    answers = run(engine, Submit("a", [1] * 10, greedy(7)), Submit("b", [1] * 10, SamplingParams(temperature=0)))
    assert (len(answers["a"].ids), answers["a"].finish) == (7, "length")
    assert (len(answers["b"].ids), answers["b"].finish) == (54, "length")


def test_a_stop_token_ends_the_answer_and_is_not_part_of_it():
    engine = null_engine()
    free = run(engine, Submit("a", [1, 2], greedy(10)))["a"].ids
    stopped = run(engine, Submit("b", [1, 2], greedy(10, stop_token_ids=(free[4],))))["b"]
    end = free.index(free[4])
    assert (stopped.ids, stopped.finish, stopped.stopped_by) == (free[:end], "stop", free[4])


def test_eos_ends_the_answer_unless_it_is_ignored():
    engine = null_engine(null=NullModel(vocab=512, context=256, eos_id=3, eos_one_in=8))
    ended = run(engine, Submit("a", [1], greedy(200)))["a"]
    assert (ended.finish, ended.stopped_by) == ("stop", 3)
    assert 3 not in ended.ids
    ignored = run(engine, Submit("b", [1], greedy(200, ignore_eos=True)))["b"]
    assert (ignored.finish, len(ignored.ids)) == ("length", 200)
    assert ignored.ids[: len(ended.ids) + 1] == [*ended.ids, 3]


def test_min_tokens_holds_eos_and_stop_tokens_back():
    engine = null_engine(null=NullModel(vocab=512, context=256, eos_id=3, eos_one_in=8))
    short = run(engine, Submit("a", [1], greedy(200)))["a"]
    least = len(short.ids) + 10
    longer = run(engine, Submit("b", [1], greedy(200, min_tokens=least)))["b"]
    assert len(longer.ids) >= least
    assert 3 not in longer.ids
    assert longer.ids[: len(short.ids)] == short.ids


def test_a_seed_gives_the_same_tokens_whatever_the_batch_and_preemption():
    def params() -> SamplingParams:
        return SamplingParams(temperature=1.5, top_p=0.95, seed=11, max_tokens=40)

    prompt = list(range(40))
    alone = run(null_engine(), Submit("a", prompt, params()))["a"].ids
    engine = null_engine(pages=16, max_num_seqs=8, max_num_batched_tokens=16)
    neighbours = [
        Submit(f"n{i}", [i] * 20, SamplingParams(max_tokens=60, temperature=1.0), priority=-1) for i in range(8)
    ]
    crowded = run(engine, *neighbours, Submit("a", prompt, params()))
    assert engine.stats().preemptions > 0
    assert crowded["a"].ids == alone
    other = run(null_engine(), Submit("a", prompt, SamplingParams(temperature=1.5, seed=12, max_tokens=40)))["a"].ids
    assert other != alone


def test_requests_without_a_seed_differ_unless_the_engine_has_one():
    def answers(**options) -> list[list[int]]:
        engine = null_engine(**options)
        two = run(engine, *(Submit(name, [1, 2], SamplingParams(temperature=5.0, max_tokens=20)) for name in "ab"))
        return [two["a"].ids, two["b"].ids]

    a, b = answers()
    assert a != b
    assert answers(seed=3) == answers(seed=3)
    assert answers(seed=3) != answers(seed=4)


def test_logprobs_come_with_each_token():
    answer = run(null_engine(), Submit("a", [1], greedy(3, logprobs=2)))["a"]
    for token in answer.tokens:
        assert token.top is not None
        assert token.top[0] == (token.id, token.logprob)
        assert len(token.top) == 2
        assert token.top[0][1] > token.top[1][1]
    assert answer.ids == run(null_engine(), Submit("a", [1], greedy(3)))["a"].ids


@pytest.mark.parametrize(
    ("message", "param"),
    [
        (Submit("x", [], greedy()), "prompt"),
        (Submit("x", [512], greedy()), "prompt"),
        (Submit("x", [-1], greedy()), "prompt"),
        (Submit("x", [1], greedy(n=2)), "n"),
        (Submit("x", [1], greedy(logit_bias={512: 1.0})), "logit_bias"),
        (Submit("x", [1], greedy(stop_token_ids=(-1,))), "stop_token_ids"),
        (Submit("x", [1], greedy(min_tokens=2, stop_token_ids=tuple(range(512)))), "min_tokens"),
    ],
)
def test_an_invalid_request_is_refused_by_name_and_leaves_nothing(message, param):
    engine = null_engine()
    with pytest.raises(RequestError) as failure:
        engine.submit(message)
    assert failure.value.param == param
    assert engine.idle


def test_limits_are_typed_errors():
    engine = null_engine(context=64, max_waiting=1)
    with pytest.raises(ContextLengthError):
        engine.submit(Submit("long", [1] * 64, greedy(1)))
    engine.submit(Submit("a", [1], greedy()))
    with pytest.raises(RequestError, match="running already"):
        engine.submit(Submit("a", [1], greedy()))
    with pytest.raises(QueueFullError):
        engine.submit(Submit("b", [1], greedy()))
    assert list(run(engine)) == ["a"]


@pytest.mark.parametrize("params", [greedy(20), SamplingParams(max_tokens=20, seed=1)])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_request_whose_logits_are_not_finite_fails_alone(params, bad):
    engine = null_engine()
    healthy = run(engine, Submit("b", [5], greedy(20)))["b"].ids
    original = engine._executor.run
    victim = list(range(40))

    def run_with_fault(step):
        outputs = original(step)
        for row, i in enumerate(np.searchsorted(step.starts, step.logits_rows, side="right") - 1):
            if step.contexts[i] >= 36:  # only the long prompt gets there
                outputs.greedy[row] = -1
                if outputs.logits is not None:
                    outputs.logits[row, 7] = bad
        return outputs

    engine._executor.run = run_with_fault  # type: ignore[method-assign]
    answers = run(engine, Submit("a", victim[:30], params), Submit("b", [5], greedy(20)))
    failure = answers["a"].failure
    assert isinstance(failure, Failed)
    assert failure.kind == "NumericsError"
    assert answers["b"].ids == healthy
    check_pages(engine)
    engine._executor.run = original  # type: ignore[method-assign]
    assert run(engine, Submit("c", victim[:30], greedy(1)))["c"].cached == 0, "pages of a failed request are not reused"


def test_stats_count_since_the_start_and_the_warm_up_does_not_count():
    engine = null_engine()
    assert engine.stats().steps == engine.stats().generated_tokens == engine.stats().prompt_tokens == 0
    run(engine, Submit("a", [1, 2, 3], greedy(5)))
    stats = engine.stats()
    assert (stats.steps, stats.prompt_tokens, stats.generated_tokens) == (5, 3, 5)
    assert (stats.running, stats.waiting) == (0, 0)
    [pages] = stats.pages
    assert pages.total == pages.free
