"""Texts and pairs as encoders read them, cut or not, against the library's own way of it."""

from itertools import product
from pathlib import Path

import pytest
import tokenizers
from tests.server.word_tokenizer import WORDS, write_words

from trimaran.base.errors import CheckpointError, RequestError
from trimaran.text.encoder_tokenizer import EncoderTokenizer

LENGTHS = (0, 1, 5, 6, 7, 40)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_words(tmp_path_factory.mktemp("words")) / "tokenizer.json"


def text(words: int, first: int = 0) -> str:
    return " ".join(WORDS[first : first + words])


@pytest.mark.parametrize("longest", [None, 4, 5, 12, 13, 200])
def test_pairs_are_cut_as_by_the_library(file: Path, longest: int | None) -> None:
    theirs = tokenizers.Tokenizer.from_file(str(file))
    theirs.no_padding()
    theirs.no_truncation()
    if longest is not None:
        theirs.enable_truncation(longest, strategy="longest_first")
    pairs = [(text(one), text(other, 90)) for one, other in product(LENGTHS, LENGTHS)]
    ours = list(EncoderTokenizer(file).encode_pairs(pairs, longest))
    for pair, made in zip(pairs, ours, strict=True):
        wanted = theirs.encode(*pair)
        assert made.ids == wanted.ids
        assert [int(at >= made.second) for at in range(len(made.ids))] == wanted.type_ids
    singles = [one for one, _ in pairs]
    assert EncoderTokenizer(file).encode(singles, longest) == [theirs.encode(one).ids for one in singles]


def test_control_tokens_need_room(file: Path) -> None:
    tokenizer = EncoderTokenizer(file)
    with pytest.raises(RequestError, match="3 control tokens"):
        list(tokenizer.encode_pairs([("w1", "w2")], 3))
    with pytest.raises(RequestError, match="2 control tokens"):
        tokenizer.encode(["w1"], 2)


def test_texts_that_are_joined_are_no_pair(file: Path, tmp_path: Path) -> None:
    joined = tmp_path / "tokenizer.json"
    joined.write_text(file.read_text("utf-8").replace('"type_id": 1', '"type_id": 0'), "utf-8")
    with pytest.raises(CheckpointError, match="pair of texts"):
        EncoderTokenizer(joined).require_pairs()
    EncoderTokenizer(file).require_pairs()
