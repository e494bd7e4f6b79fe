from pathlib import Path

import numpy as np
import pytest

from trimaran.base.formats import KVFormat
from trimaran.evaluate.divergence import Distances, Text, cut, distances, summarise
from trimaran.evaluate.measures import divergence, log_softmax
from trimaran.evaluate.sequences import Run, Sequences

from .tiny import opened, write_tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tiny") / "model")


TEXTS = [
    Text("first", np.random.default_rng(3).integers(0, 95, 150).tolist()),
    Text("second", np.random.default_rng(4).integers(0, 95, 70).tolist()),
]


def logits(sequences: Sequences, tokens: list[int]) -> np.ndarray:
    slot = sequences.open(len(tokens))
    rows = [sequences.step([(slot, Run(at, [token], wanted=1))])[0].logits.copy() for at, token in enumerate(tokens)]
    sequences.free(slot)
    return np.concatenate(rows)


def test_figures_are_those_of_whole_logits(model: Path) -> None:
    fine, coarse = opened(model, KVFormat.FP32, longest=150), opened(model, KVFormat.INT4, longest=150)
    found = distances(fine, coarse, TEXTS)
    for each in found:
        p, q = (log_softmax(logits(sequences, each.text.tokens)) for sequences in (fine, coarse))
        assert np.allclose(each.kl, divergence(p, q), atol=1e-12)
        assert np.array_equal(each.same, p.argmax(axis=1) == q.argmax(axis=1))
        following = each.text.tokens[1:]
        assert np.allclose(each.reference, p[np.arange(len(following)), following])
        assert np.allclose(each.ours, q[np.arange(len(following)), following])
    summary = summarise(found)
    assert summary.mean == pytest.approx(np.mean([each.kl.mean() for each in found]))
    assert summary.tokens == 220
    assert summary.mean > 0
    fine.close()
    coarse.close()


def test_a_configuration_is_no_way_from_itself(model: Path) -> None:
    one, other = opened(model, longest=150), opened(model, longest=150)
    summary = summarise(distances(one, other, TEXTS))
    assert (summary.mean, summary.max, summary.top1, summary.ratio) == (0, 0, 1, 1)
    assert summary.first_mean is None
    one.close()
    other.close()


def test_texts_count_the_same_and_positions_by_doubling_buckets() -> None:
    long, short = Text("long", [0] * 300), Text("short", [0] * 100)
    found = [
        Distances(text, np.full(len(text.tokens), kl), np.ones(len(text.tokens), bool), np.zeros(9), np.ones(9))
        for text, kl in ((long, 1.0), (short, 3.0))
    ]
    summary = summarise(found)
    assert summary.mean == 2
    assert summary.texts == {"long": 1, "short": 3}
    assert list(summary.positions) == [0, 64, 128, 256]
    assert summary.positions[0] == 2
    assert summary.positions[128] == summary.positions[256] == 1
    assert summary.max == 3
    assert summary.ratio == pytest.approx(np.exp(-1))


def test_rows_behind_the_cut_are_compared_and_the_first_stands_apart(model: Path) -> None:
    texts = cut(TEXTS)
    assert [each.cut for each in texts] == [37, 75, 112, 17, 35, 52]
    whole = opened(model, KVFormat.BF16, longest=150)
    halves = opened(model, KVFormat.INT4, KVFormat.BF16, longest=150)
    found = distances(whole, halves, texts[3:])
    assert [len(each.kl) for each in found] == [53, 35, 18]
    summary = summarise(found)
    assert summary.first_mean == pytest.approx(np.mean([each.kl[0] for each in found]))
    assert summary.first_mean > 0
    whole.close()
    halves.close()
