import json

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from trimaran.base.errors import CheckpointError, UnsupportedError
from trimaran.text.byte_level import ALPHABET
from trimaran.text.hf_vocab import read_hf_vocab
from trimaran.text.tokenizer import Tokenizer as Ours


@pytest.fixture
def write(tmp_path):
    """Writes a checkpoint's tokenizer files and returns their directory."""

    def write(core=None, config=None, generation=None):
        (tmp_path / "tokenizer.json").write_text((core or byte_level()).to_str())
        for name, value in (("tokenizer_config.json", config), ("generation_config.json", generation)):
            if value is not None:
                (tmp_path / name).write_text(json.dumps(value))
        return tmp_path / "tokenizer.json"

    return write


def byte_level():
    vocab = {char: i for i, char in enumerate(ALPHABET)} | {"he": 256, "hello": 257}
    core = Tokenizer(models.BPE(vocab=vocab, merges=[("h", "e")]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken("<bos>"), AddedToken("<end>", rstrip=True, normalized=False)])
    core.add_tokens([AddedToken("<think>", normalized=False)])
    return core


HE, BOS, END, THINK = 256, 258, 259, 260


def test_control_tokens_and_added_tokens(write):
    ours = Ours(read_hf_vocab(write(), {}))
    assert ours.vocab_size == 261
    assert ours.special_ids == {BOS, END}
    assert ours.encode("<think><end>") == [THINK, *b"<end>"]
    assert ours.encode("he<end>  x", special=True) == [HE, END, ord("x")]
    assert ours.decode([HE, END, THINK], skip_special=False) == "he<end><think>"
    assert ours.decode([HE, END, THINK]) == "he<think>"


@pytest.mark.parametrize("text", ["<bos>he  <end> \n h", "<end><end>", "x<think>y", " café <bos"])
def test_the_same_ids_as_the_library(write, text):
    core = byte_level()
    assert Ours(read_hf_vocab(write(core), {})).encode(text, special=True) == core.encode(text).ids


def test_ends_come_from_all_three_files(write):
    path = write(config={"eos_token": {"content": "<end>"}}, generation={"eos_token_id": [7, 8]})
    assert Ours(read_hf_vocab(path, {"eos_token_id": 9})).eos_ids == {7, 8, 9, END}


def test_bos_by_flag_or_by_what_the_post_processor_adds(write):
    config = {"bos_token": "<bos>"}
    plain, adding = byte_level(), byte_level()
    adding.post_processor = processors.TemplateProcessing(single="<bos> $0", special_tokens=[("<bos>", BOS)])

    def prompt(core, **flag):
        return Ours(read_hf_vocab(write(core, config=config | flag), {})).encode_prompt("he")

    assert prompt(plain) == [HE]
    assert prompt(plain, add_bos_token=True) == [BOS, HE]
    assert prompt(adding) == [BOS, HE]
    assert prompt(adding, add_bos_token=False) == [HE]


def test_no_bos_token_no_bos(write):
    assert Ours(read_hf_vocab(write(config={"bos_token": None}), {})).encode_prompt("he") == [HE]


def test_truncation_and_padding_of_the_training_are_ignored(write):
    core = byte_level()
    core.enable_truncation(2)
    core.enable_padding(length=8)
    assert Ours(read_hf_vocab(write(core), {})).encode("xxxx") == [ALPHABET.index("x")] * 4


def test_normalisers_act(write):
    core = byte_level()
    core.normalizer = normalizers.NFC()
    assert Ours(read_hf_vocab(write(core), {})).encode("e\u0301") == [*"é".encode()]


def test_other_kinds_are_refused(write):
    words = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    spaced = byte_level()
    spaced.decoder = decoders.WordPiece()
    for core in (words, spaced):
        with pytest.raises(UnsupportedError, match="byte-level BPE"):
            read_hf_vocab(write(core), {})


@pytest.mark.parametrize("data", [b"{}", b"not JSON", b'{"model": {"type": "BPE"}}', b'{"model": {}, "decoder": {}}'])
def test_damaged_files_are_named(tmp_path, data):
    (tmp_path / "tokenizer.json").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json cannot be read"):
        read_hf_vocab(tmp_path / "tokenizer.json", {})
