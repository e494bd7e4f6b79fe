import json
from base64 import b64encode

import pytest

from trimaran.base.errors import CheckpointError, UnsupportedError
from trimaran.text.tiktoken_vocab import read_tiktoken_vocab
from trimaran.text.tokenizer import Tokenizer

TOKENS = [*(bytes([byte]) for byte in range(256)), b"he", b"hel", b"lo", b"hello"]
FIRST = len(TOKENS)
KIMI = {
    "tokenizer_class": "TikTokenTokenizer",
    "added_tokens_decoder": {
        str(FIRST): {"content": "[BOS]", "special": True},
        str(FIRST + 2): {"content": "<|im_end|>", "special": True},
        str(FIRST + 5): {"content": "<|tool_call_begin|>", "special": False},
        str(FIRST + 6): {"content": "<think>", "special": False},
    },
    "bos_token": "[BOS]",
    "eos_token": {"content": "<|im_end|>"},
}


def lines(tokens):
    return b"".join(b"%s %d\n" % (b64encode(token), rank) for rank, token in enumerate(tokens))


@pytest.fixture
def read(tmp_path):
    def read(data=None, config=KIMI):
        (tmp_path / "tiktoken.model").write_bytes(lines(TOKENS) if data is None else data)
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        return Tokenizer(read_tiktoken_vocab(tmp_path / "tiktoken.model", {}))

    return read


def test_merges_come_from_the_ranks(read):
    assert read().encode("hello hel") == [259, ord(" "), 257]


def test_what_the_configuration_names_and_what_is_reserved(read):
    tokenizer = read()
    assert tokenizer.vocab_size == FIRST + 256
    assert tokenizer.token_bytes(FIRST + 1) == b"<|reserved_token_%d|>" % (FIRST + 1)
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (FIRST, {FIRST + 2})
    assert tokenizer.encode("<|im_end|>x", special=True) == [FIRST + 2, ord("x")]


def test_a_marker_steers_but_shows_and_thoughts_are_text(read):
    tokenizer = read()
    call, think = FIRST + 5, FIRST + 6
    assert tokenizer.encode("<|tool_call_begin|><think>") == [*b"<|tool_call_begin|>", think]
    assert tokenizer.encode("<|tool_call_begin|>", special=True) == [call]
    assert tokenizer.decode([call, think, FIRST + 2]) == "<|tool_call_begin|><think>"
    assert [token.text for token in tokenizer.added] == ["<think>"]


def test_qwens_control_tokens_are_known(read):
    tokenizer = read(config={"tokenizer_class": "QWenTokenizer", "eos_token": "<|im_end|>"})
    assert tokenizer.vocab_size == FIRST + 208
    assert tokenizer.eos_ids == {FIRST + 2}
    assert tokenizer.token_bytes(FIRST + 207) == b"<|extra_204|>"


@pytest.mark.parametrize("name", ["LlamaTokenizer", None, 7, True])
def test_an_unknown_class_is_named(read, name):
    with pytest.raises(UnsupportedError, match=rf"{name!r}.*TikTokenTokenizer"):
        read(config={"tokenizer_class": name})


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"AA== 0\nAQ== 2\n", "bad line 2"),
        (b"AA== 0\n", "no token for the byte 0x01"),
        (b"!? 0\n", "bad line 1"),
        (b"AA==\n", "bad line 1"),
        (lines([*TOKENS[:-1], b"he"]), "twice"),
    ],
)
def test_damage_is_named(read, data, text):
    with pytest.raises(CheckpointError, match=text):
        read(data)


@pytest.mark.parametrize(
    ("added", "text"),
    [
        ({"5": {"content": "x"}}, "as 5, but ids below 260"),
        ({"300": {}}, "malformed"),
        ({"x": {"content": "x"}}, "malformed"),
        ([], "must be an object"),
        ({"300": {"content": "x"}, "301": {"content": "x"}}, "twice"),
        ({str(1 << 31): {"content": "x"}}, "asks for a vocabulary of 2147483649"),
        ({"300": {"content": "\ud800"}}, "surrogates not allowed"),
    ],
)
def test_bad_added_tokens_are_named(read, added, text):
    with pytest.raises(CheckpointError, match=text):
        read(config=KIMI | {"added_tokens_decoder": added})


@pytest.mark.parametrize("entry", [{"content": "[X]"}, "[X]"])
def test_what_is_not_said_to_be_text_steers(read, entry):
    tokenizer = read(config=KIMI | {"added_tokens_decoder": {str(FIRST): entry}})
    assert tokenizer.encode("[X]") == [*b"[X]"]
    assert FIRST in tokenizer.special_ids
