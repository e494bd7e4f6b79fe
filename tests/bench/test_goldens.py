from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from trimaran.base.errors import CheckpointError
from trimaran.bench.goldens import Golden, estimate_kl, load_goldens, score
from trimaran.evaluate.measures import log_softmax

GOLDENS = Path(__file__).parent.parent / "data" / "goldens"
VOCAB, TOP, DRAWN = 400, 24, 16


def random_logits(rows: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 3, (rows, VOCAB)).astype(np.float32)


def make_golden(logits: np.ndarray) -> Golden:
    logprobs = log_softmax(logits)
    ids = np.argsort(-logprobs, axis=1)[:, :TOP]
    others = logprobs.copy()
    np.put_along_axis(others, ids, -np.inf, axis=1)
    tokens = np.random.default_rng(9).integers(0, VOCAB, len(logits)).astype(np.int32)
    random = np.random.default_rng(8)
    drawn = np.array([random.choice(VOCAB, DRAWN, p=row / row.sum()) for row in np.exp(others)])
    return Golden(
        name="text",
        tokens=tokens,
        ids=ids.astype(np.uint16),
        logprobs=np.take_along_axis(logprobs, ids, axis=1).astype(np.float32),
        rest=np.log(np.exp(others).sum(axis=1)).astype(np.float32),
        drawn=drawn.astype(np.uint16),
        drawn_logprobs=np.take_along_axis(logprobs, drawn, axis=1).astype(np.float32),
        target=logprobs[np.arange(len(tokens) - 1), tokens[1:]].astype(np.float32),
    )


def full_kl(golden_logits: np.ndarray, ours: np.ndarray) -> np.ndarray:
    p, q = log_softmax(golden_logits), log_softmax(ours)
    return (np.exp(p) * (p - q)).sum(axis=1)


def test_the_same_logits_have_no_distance():
    logits = random_logits(12, 0)
    result = score(make_golden(logits), [logits[:5], logits[5:]], full=logits)
    assert abs(result.mean_kl) < 1e-6
    assert abs(result.max_kl) < 1e-6
    assert abs(result.full_kl) < 1e-12
    assert result.agreement == 1
    assert result.disagreements == ()
    assert result.perplexity == pytest.approx(result.golden_perplexity, rel=1e-6)


def test_the_estimate_is_close_to_the_kl_over_all_tokens():
    logits = random_logits(400, 1)
    ours = logits + np.random.default_rng(2).normal(0, 0.05, logits.shape).astype(np.float32)
    golden = make_golden(logits)
    estimate, full = estimate_kl(golden, slice(0, 400), log_softmax(ours)), full_kl(logits, ours)
    np.testing.assert_allclose(estimate, full, atol=3e-4)
    assert estimate.mean() == pytest.approx(full.mean(), rel=0.01)


def test_the_estimate_counts_what_happens_outside_the_kept_tokens():
    logits = random_logits(50, 3)
    golden = make_golden(logits)
    ours, tail = logits.copy(), np.ones_like(logits, dtype=bool)
    np.put_along_axis(tail, golden.ids.astype(np.int64), False, axis=1)
    ours[tail] += 1.0  # every token outside the top gains alike: no estimate is needed
    estimate = estimate_kl(golden, slice(0, 50), log_softmax(ours))
    np.testing.assert_allclose(estimate, full_kl(logits, ours), rtol=1e-3)


def test_a_swapped_favourite_is_counted_with_its_margin():
    logits = random_logits(10, 4)
    golden = make_golden(logits)
    ours = logits.copy()
    first, second = golden.ids[7, :2]
    ours[7, second] = ours[7, first] + 0.1
    result = score(golden, [ours])
    assert result.agreement == pytest.approx(0.9)
    [(position, margin)] = result.disagreements
    assert position == 7
    assert margin == pytest.approx(logits[7, first] - logits[7, second], abs=1e-4)


def test_perplexity_uses_the_token_that_follows():
    logits = random_logits(6, 5)
    golden = make_golden(logits)
    better = logits.copy()
    better[np.arange(5), golden.tokens[1:]] += 2.0
    result = score(golden, [better[:1], better[1:]])
    expected = np.exp(-log_softmax(better)[np.arange(5), golden.tokens[1:]].mean())
    assert result.perplexity == pytest.approx(expected)
    assert result.perplexity_ratio < 1


def test_first_cuts_everything_alike():
    logits = random_logits(10, 6)
    short = make_golden(logits).first(4)
    assert [len(getattr(short, field.name)) for field in fields(Golden)[1:]] == [4, 4, 4, 4, 4, 4, 3]
    assert abs(score(short, [logits[:4]]).mean_kl) < 1e-6


def test_as_many_logits_as_tokens_are_asked_for():
    logits = random_logits(6, 7)
    with pytest.raises(AssertionError, match="as many logits as tokens"):
        score(make_golden(logits), [logits[:3]])


def test_no_goldens_is_an_error_that_says_how_to_make_them(tmp_path):
    with pytest.raises(CheckpointError, match="make goldens"):
        load_goldens(tmp_path, "smollm2")


@pytest.fixture(scope="module")
def committed() -> list[Golden]:
    return load_goldens(GOLDENS, "smollm2")


def test_committed_goldens_are_three_long_texts(committed):
    assert [golden.name for golden in committed] == ["code", "gsm8k", "verse"]
    assert all(len(golden.tokens) >= 384 for golden in committed)
    assert sum(path.stat().st_size for path in GOLDENS.glob("*.npz")) < 1.5e6


def test_committed_goldens_are_distributions(committed):
    for golden in committed:
        mass = np.exp(golden.logprobs.astype(np.float64)).sum(axis=1) + np.exp(golden.rest.astype(np.float64))
        np.testing.assert_allclose(mass, 1, atol=1e-6)
        assert (np.diff(golden.logprobs, axis=1) <= 0).all(), "best first"
        assert all(len(set(row)) == len(row) for row in golden.ids.tolist())
        assert (golden.rest > golden.logprobs[:, -1]).all(), "the rest is thousands of tokens"
        assert (golden.drawn_logprobs <= golden.logprobs[:, -1:]).all(), "drawn from outside the top"


def test_committed_targets_belong_to_their_tokens(committed):
    for golden in committed:
        kept = golden.ids[:-1] == golden.tokens[1:, None]
        rows = kept.any(axis=1)
        assert rows.mean() > 0.8
        np.testing.assert_array_equal(golden.logprobs[:-1][kept], golden.target[rows])
