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


def test_what_the_library_panics_at_is_damage(write):
    path = write()
    file = json.loads(path.read_text())
    piece = {"SpecialToken": {"id": "<bos>", "type_id": 0}}
    file["post_processor"] = {"type": "TemplateProcessing", "single": [piece], "pair": [], "special_tokens": {}}
    path.write_text(json.dumps(file))
    with pytest.raises(CheckpointError, match=r"tokenizer\.json cannot be read"):
        read_hf_vocab(path, {})


def test_an_id_of_billions_makes_no_table(write):
    path = write()
    file = json.loads(path.read_text())
    file["model"]["vocab"]["hello"] = (1 << 32) - 1
    path.write_text(json.dumps(file))
    with pytest.raises(CheckpointError, match="asks for a vocabulary of 4294967296 tokens"):
        read_hf_vocab(path, {})


def pieces(**metaspace):
    vocab = {"<s>": 0, "▁": 1, "a": 2, "▁a": 3} | {f"<0x{byte:02X}>": 4 + byte for byte in range(256)}
    core = Tokenizer(models.BPE(vocab, [("▁", "a")], byte_fallback=True))
    core.pre_tokenizer = pre_tokenizers.Metaspace("▁", split=False, **metaspace)
    undo = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    core.decoder = decoders.Sequence(undo)
    core.add_special_tokens([AddedToken("<s>", normalized=False)])
    return core


def test_a_blank_before_the_first_word_only_or_each(write):
    first = Ours(read_hf_vocab(write(pieces(prepend_scheme="first")), {}))
    assert first.encode("a<s>a", special=True) == [3, 0, 2]
    assert first.encode("<s>a", special=True) == [0, 2]
    always = Ours(read_hf_vocab(write(pieces(prepend_scheme="always")), {}))
    assert always.encode("<s>a", special=True) == [0, 3]
    assert always.decode([3, 3]) == "a a"
    assert always.decode([0, 3], skip_special=False) == "<s> a"


def test_bytes_of_pieces_are_exact(write):
    ours = Ours(read_hf_vocab(write(pieces(prepend_scheme="never")), {}))
    assert [ours.token_bytes(i) for i in (3, 4 + 0xE4)] == [b" a", b"\xe4"]
    assert ours.decode(ours.encode("é a")) == "é a"


def test_markers_that_a_file_does_not_call_special_steer_all_the_same(write):
    core = byte_level()
    core.add_tokens([AddedToken("<｜User｜>"), AddedToken("<|call|>", normalized=False)])
    ours = Ours(read_hf_vocab(write(core), {}))
    text = "<｜User｜><|call|>"
    assert ours.encode(text, special=True) == [261, 262]
    assert not {261, 262}.intersection(ours.encode(text))
    assert ours.decode([261, 262]) == text
    assert [token.text for token in ours.added] == ["<think>"]


def test_a_file_whose_rules_make_control_tokens_of_text_is_refused(write):
    vocab = {char: i for i, char in enumerate(ALPHABET)} | {"<s": 256, "<s>": 257}
    core = Tokenizer(models.BPE(vocab=vocab, merges=[("<", "s"), ("<s", ">")]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken("<s>", normalized=False)])
    with pytest.raises(UnsupportedError, match="control token '<s>'"):
        read_hf_vocab(write(core), {})


@pytest.mark.parametrize("normalizer", [normalizers.Strip(), normalizers.Replace("x", ""), normalizers.NFKC()])
def test_the_bound_on_tokens_gives_way_to_what_drops_text(write, normalizer):
    core = byte_level()
    core.normalizer = normalizer
    assert Ours(read_hf_vocab(write(core), {})).fewest_tokens("x" * 10**6) == 0
    keeping = Ours(read_hf_vocab(write(pieces(prepend_scheme="never")), {}))
    assert keeping.fewest_tokens("x" * 10**6) > 10**4
