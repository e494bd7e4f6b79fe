import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimaran.base.sampling import SamplingParams
from trimaran.engine.filters import uniform
from trimaran.engine.sampler import Sampler

VOCAB = 400
STOPS = frozenset({5})


def sampler(key: int = 0, prompt: tuple[int, ...] = (1, 2), **params) -> Sampler:
    return Sampler(SamplingParams(**params), prompt=list(prompt), stops=STOPS, key=key)


def logits(seed: int = 0, spread: float = 2.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(VOCAB) * spread).astype(np.float32)


def pick(s: Sampler, row: np.ndarray, position: int = 10) -> int:
    token = s.pick(row, position)
    assert token is not None
    return token.id


def naive(row, *, key, position, temperature, k, p, min_p) -> int:
    """The definition, in float64: sort, filter one after the other, invert the running sum."""
    order = sorted(range(len(row)), key=lambda i: (-row[i], i))
    if k:
        order = order[:k]
    weights = np.exp((row[order].astype(np.float64) - row[order[0]]) / temperature)
    if p < 1:
        keep = int(np.searchsorted(np.cumsum(weights), p * weights.sum())) + 1
        weights[keep:] = 0
    weights[weights < min_p] = 0
    by_id = np.argsort(order)  # drawn in order of ids
    order, weights = [order[i] for i in by_id], weights[by_id]
    running = np.cumsum(weights)
    return order[int(np.searchsorted(running, uniform(key, position) * running[-1], side="right"))]


@settings(max_examples=300)
@given(
    st.integers(0, 2**64 - 1),
    st.sampled_from([0.2, 0.7, 1.0, 1.8]),
    st.sampled_from([0, 1, 5, 50, 1000]),
    st.sampled_from([0.05, 0.5, 0.9, 1.0]),
    st.sampled_from([0.0, 0.05, 0.5]),
)
def test_draws_equal_the_definition(key, temperature, k, p, min_p):
    row = logits(key % 7)
    got = pick(sampler(key, temperature=temperature, top_k=k, top_p=p, min_p=min_p), row)
    filtered = 0 if k >= VOCAB else k
    assert got == naive(row, key=key, position=10, temperature=temperature, k=filtered, p=p, min_p=min_p)


@pytest.mark.parametrize("temperature", [1e-30, 1e-5])
def test_a_tiny_temperature_is_greedy(temperature):
    assert all(pick(sampler(key, temperature=temperature), logits()) == logits().argmax() for key in range(50))


def test_draws_follow_the_softmax():
    row = logits(3)
    counts = np.bincount([pick(sampler(9), row, position=i) for i in range(20_000)], minlength=VOCAB)
    expected = np.exp(row - row.max())
    expected /= expected.sum()
    assert np.abs(counts / 20_000 - expected).sum() < 0.12


def test_top_k_minus_one_and_zero_are_off():
    row = logits()
    assert [pick(sampler(i, top_k=-1), row) for i in range(20)] == [pick(sampler(i), row) for i in range(20)]


def test_the_row_is_not_modified():
    row = logits()
    before = row.copy()
    s = sampler(temperature=0.7, presence_penalty=1.0, logit_bias={3: 5.0}, min_tokens=4, top_p=0.9, logprobs=3)
    pick(s, row)
    np.testing.assert_array_equal(row, before)


def test_bias_moves_the_choice():
    assert pick(sampler(temperature=0, logit_bias={17: 100.0}), logits()) == 17
    best = int(logits().argmax())
    assert pick(sampler(temperature=0, logit_bias={best: -100.0}), logits()) != best


def test_stop_tokens_are_masked_until_min_tokens():
    row = logits()
    row[5] = 50
    s = sampler(temperature=0, min_tokens=2)
    assert [pick(s, row, position=2 + n) == 5 for n in range(4)] == [False, False, True, True]


def mask_of(*tokens: int) -> np.ndarray:
    allowed = np.zeros(-(-VOCAB // 32) * 32, bool)
    allowed[list(tokens)] = True
    return np.packbits(allowed, bitorder="little").view(np.uint32)


def test_a_mask_leaves_its_tokens_only():
    row = logits()
    best = max(7, 33, 399, key=lambda token: row[token])
    greedy = sampler(temperature=0, logit_bias={8: 100.0}).pick(row, 10, mask_of(7, 33, 399))
    assert greedy is not None
    assert greedy.id == best
    drawn = {sampler(key, temperature=5.0).pick(row, 10, mask_of(7, 33, 399)) for key in range(60)}
    assert {token.id for token in drawn if token} == {7, 33, 399}
    assert sampler().pick(row, 10, mask_of()) is None


def test_a_mask_does_not_change_log_probabilities():
    row = logits()
    free, masked = (sampler(temperature=0, logprobs=3).pick(row, 10, mask) for mask in (None, mask_of(7)))
    assert free is not None
    assert masked is not None
    assert masked.top == free.top
    assert masked.logprob == pytest.approx(float(row[7]) - np.log(np.exp(row.astype(float)).sum()), abs=1e-5)


def test_min_tokens_gives_way_to_a_mask_that_leaves_stops_only():
    row = logits()
    row[5] = 50
    s = sampler(temperature=0, min_tokens=5)
    with_others, alone = s.pick(row, 2, mask_of(5, 9)), s.pick(row, 2, mask_of(5))
    assert with_others is not None
    assert alone is not None
    assert (with_others.id, alone.id) == (9, 5)


def test_penalties_remember_the_output():
    row = logits()
    s = sampler(temperature=0, frequency_penalty=2.0)
    picks = [pick(s, row) for _ in range(12)]
    assert len(set(picks)) > 1
    assert picks[0] == row.argmax()
    no_output_yet = sampler(temperature=0, presence_penalty=2.0, prompt=(int(row.argmax()),))
    assert pick(no_output_yet, row) == row.argmax(), "presence looks at the output only"
    repeated = sampler(temperature=0, repetition_penalty=5.0, prompt=(int(row.argmax()),))
    assert pick(repeated, row) != row.argmax(), "repetition looks at the prompt too"


def test_logprobs_are_those_of_the_model_before_any_option():
    row = logits()
    exact = row.astype(np.float64) - row.max()
    exact -= np.log(np.exp(exact).sum())
    s = sampler(temperature=0.3, top_k=1, logit_bias={40: 100.0}, presence_penalty=2.0, logprobs=5)
    token = s.pick(row, 0)
    assert token is not None
    assert token.id == 40
    assert token.logprob == pytest.approx(exact[40], abs=1e-5)
    order = np.argsort(-exact, kind="stable")[:5]
    assert token.top is not None
    assert [i for i, _ in token.top] == order.tolist()
    assert [value for _, value in token.top] == pytest.approx(exact[order].tolist(), abs=1e-5)
    chosen_only = sampler(temperature=0, logprobs=0).pick(row, 0)
    assert chosen_only is not None
    assert chosen_only.top == []


def test_negative_seeds_are_seeds():
    assert pick(sampler(-1), logits()) == pick(sampler(2**64 - 1), logits())
