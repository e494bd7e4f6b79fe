from pathlib import Path

import pytest

from trimaran.checkpoint import open_checkpoint
from trimaran.evaluate.needle import DEPTHS, REPEATS, needles
from trimaran.text.tokenizer import Tokenizer, open_tokenizer


@pytest.fixture(scope="module")
def tokenizer(smollm2: Path) -> Tokenizer:
    with open_checkpoint(smollm2) as checkpoint:
        return open_tokenizer(checkpoint)


def test_the_fact_that_is_asked_for_is_where_it_should_be(tokenizer: Tokenizer) -> None:
    found = needles(tokenizer, 600)
    assert len(found) == 2 * len(DEPTHS) * REPEATS, "of the lengths, two fit"
    for each in found:
        text = tokenizer.decode(each.question.context)
        words = [tokenizer.decode(option) for option in each.question.options]
        town = text.rpartition("secret word of ")[2].removesuffix(" is")
        fact = f"The secret word of {town} is{words[0]}."
        assert text.count(fact) == 1
        assert text.index(fact) / len(text) == pytest.approx(0.02 + 0.9 * each.depth, abs=0.12)
        assert all(text.count(f"is{word}.") == 1 for word in words)
        assert each.length * 0.85 < each.question.length <= each.length


def test_every_run_meets_the_same(tokenizer: Tokenizer) -> None:
    assert needles(tokenizer, 300) == needles(tokenizer, 300)
    assert needles(tokenizer, 100) == []
