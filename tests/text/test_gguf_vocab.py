import pytest

from trimaran.base.errors import CheckpointError, UnsupportedError
from trimaran.text.byte_level import ALPHABET
from trimaran.text.gguf_vocab import read_gguf_vocab
from trimaran.text.tokenizer import Tokenizer


def open_small(vocab, **changes):
    return Tokenizer(read_gguf_vocab(vocab(**changes)))


def test_ids_come_from_the_metadata(vocab):
    tokens = vocab()["tokenizer.ggml.tokens"]
    small = open_small(vocab)
    assert small.vocab_size == len(tokens)
    assert small.bos_id == tokens.index("<bos>")
    assert small.eos_ids == {tokens.index("<|im_end|>"), tokens.index("<eot>")}
    assert small.special_ids == {
        tokens.index(text) for text in ("<|start|>", "<|im_end|>", "<|im_end|>>", "<bos>", "<eot>", "[unk]")
    }
    assert small.named == {"bos_token": "<bos>", "eos_token": "<|im_end|>", "unk_token": "[unk]"}


def test_added_tokens_are_text_and_keep_their_ids(vocab):
    tokens = vocab()["tokenizer.ggml.tokens"]
    small = open_small(vocab)
    think = tokens.index("<think>")
    assert small.encode("<think>hello") == [think, tokens.index("hello")]
    assert small.decode([think]) == "<think>"


def test_unused_tokens_are_never_made(vocab):
    small = open_small(vocab, pre="llama-bpe")
    pad = vocab()["tokenizer.ggml.tokens"].index("[PAD0]")
    assert pad not in small.encode("[PAD0]", special=True)


def test_whole_words_need_no_merges(vocab):
    tokens = vocab()["tokenizer.ggml.tokens"]
    merges = [merge for merge in vocab()["tokenizer.ggml.merges"] if merge != "hell o"]
    byte_o = tokens.index("o")
    assert open_small(vocab, merges=merges, pre="llama-bpe").encode("hello") == [tokens.index("hello")]
    assert open_small(vocab, merges=merges, pre="gpt-2").encode("hello") == [tokens.index("hell"), byte_o]


def test_a_control_token_is_never_a_whole_word(vocab):
    tokens = [*vocab()["tokenizer.ggml.tokens"], "stop"]
    types = [*vocab()["tokenizer.ggml.token_type"], 3]
    small = open_small(vocab, tokens=tokens, token_type=types, pre="llama-bpe")
    assert small.encode("stop") == [tokens.index(letter) for letter in "stop"]
    assert small.encode("stop", special=True) == [len(tokens) - 1]


@pytest.mark.parametrize(
    ("pre", "flag", "expected"),
    [("gpt-2", None, False), ("llama-bpe", None, True), ("llama-bpe", False, False), ("gpt-2", True, True)],
)
def test_bos_where_the_file_says_or_the_family_does(vocab, pre, flag, expected):
    small = open_small(vocab, pre=pre, add_bos_token=flag)
    assert (small.encode_prompt("hello")[0] == small.bos_id) == expected
    assert small.encode_prompt("<bos>hello").count(small.bos_id) == 1


def test_qwen_text_is_normalised(vocab):
    qwen, other = open_small(vocab, pre="qwen2"), open_small(vocab)
    assert qwen.encode("e\u0301") == qwen.encode("é")
    assert other.encode("e\u0301") != other.encode("é")


@pytest.mark.parametrize("kind", ["bert", "t5", None])
def test_other_kinds_are_refused_by_name(vocab, kind):
    with pytest.raises(UnsupportedError, match=f"{kind!r}.*SentencePiece"):
        read_gguf_vocab(vocab(model=kind))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"pre": "made-up"}, "made-up"),
        ({"pre": None}, "tokenizer.ggml.pre"),
        ({"tokens": None}, "tokenizer.ggml.tokens"),
        ({"merges": None}, "tokenizer.ggml.merges"),
        ({"merges": [1, 2]}, "tokenizer.ggml.merges"),
        ({"merges": ["no_such tokens"]}, "merges"),
        ({"token_type": [1]}, "1 token types"),
        ({"eos_token_id": 10**6}, "eos_token_id"),
        ({"bos_token_id": "x"}, "bos_token_id"),
    ],
)
def test_damage_is_named(vocab, changes, text):
    with pytest.raises(CheckpointError, match=text):
        read_gguf_vocab(vocab(**changes))


def test_a_panic_of_the_library_is_a_damaged_file(vocab):
    tokens = [*ALPHABET, "he", "ll", "Ġw"]
    metadata = vocab(tokens=tokens, token_type=[1] * len(tokens), merges=["h e", "l l", "he ll", "Ġ w"])
    with pytest.raises(CheckpointError, match="do not fit together"):
        read_gguf_vocab(metadata)


def test_markers_called_user_defined_steer_but_show(vocab):
    tokens = [*vocab()["tokenizer.ggml.tokens"], "<|call|>"]
    small = open_small(vocab, tokens=tokens, token_type=[*vocab()["tokenizer.ggml.token_type"], 4])
    call = len(tokens) - 1
    assert call not in small.encode("<|call|>")
    assert small.encode("<|call|>", special=True) == [call]
    assert small.decode([call]) == "<|call|>"
    assert "<|call|>" not in [token.text for token in small.added]


def test_ends_of_turns_are_known_by_their_text_too(vocab):
    tokens = vocab()["tokenizer.ggml.tokens"]
    assert open_small(vocab, eos_token_id=None, eot_token_id=None).eos_ids == {tokens.index("<|im_end|>")}


PIECES = {
    "model": "llama",
    "tokens": ["<unk>", "<s>", "▁", "a", "▁a", "  ", "<|user|>", "<0x41>"],
    "token_type": [2, 3, 1, 1, 1, 4, 4, 6],
    "scores": [0.0, 0.0, -3.0, -2.0, -1.0, 0.0, 0.0, 0.0],
    "pre": "default",
    "merges": None,
    "bos_token_id": 1,
    "eos_token_id": None,
    "eot_token_id": None,
    "unknown_token_id": 0,
}


def test_sentencepiece_by_scores(vocab):
    spm = open_small(vocab, **PIECES)
    assert spm.encode("a  aA") == [4, 5, 3, 7]
    assert spm.encode_prompt("a") == [1, 4]
    assert spm.decode([4, 4]) == "a a"
    assert spm.special_ids == {0, 1}
    assert 6 not in spm.encode("<|user|>")
    bare = open_small(vocab, **PIECES | {"add_space_prefix": False, "add_bos_token": False})
    assert bare.encode_prompt("a a") == [3, 4]
    assert bare.decode([4]) == " a"


@pytest.mark.parametrize("changes", [{"scores": None}, {"scores": [1.0]}, {"tokens": ["▁"] * 8, "token_type": [1] * 8}])
def test_damaged_pieces_are_named(vocab, changes):
    with pytest.raises(CheckpointError, match=r"scores|twice"):
        read_gguf_vocab(vocab(**PIECES | changes))
