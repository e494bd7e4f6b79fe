import struct
from pathlib import Path

import pytest

from trimaran.base.errors import CheckpointError, UnsupportedError
from trimaran.text.sentencepiece_vocab import read_sentencepiece_vocab
from trimaran.text.tokenizer import Tokenizer

TINY = Path(__file__).parents[1] / "data" / "tokenizers" / "tiny" / "sentencepiece" / "tokenizer.model"


def field(number, value):
    """A field in protobuf's wire format."""
    if isinstance(value, bytes):
        return (
            bytes([(number << 3 | 2) & 0x7F | (0x80 if number > 15 else 0)])
            + (bytes([number >> 4]) if number > 15 else b"")
            + bytes([len(value)])
            + value
        )
    if isinstance(value, float):
        return bytes([number << 3 | 5]) + struct.pack("<f", value)
    key = number << 3
    return (bytes([key]) if key < 128 else bytes([key & 0x7F | 0x80, key >> 7])) + bytes([value])


def piece(text, score=0.0, kind=1):
    return field(1, field(1, text.encode()) + field(2, score) + field(3, kind))


BYTES = b"".join(piece(f"<0x{byte:02X}>", kind=6) for byte in range(256))
TRAINER = field(2, field(3, 2) + field(35, 1))
NORMALIZER = field(3, field(3, 1) + field(4, 0))
SPECIAL = piece("<unk>", kind=2) + piece("<s>", kind=3) + piece("</s>", kind=3)
GOOD = SPECIAL + BYTES + piece("▁", -3.0) + piece("a", -2.0) + piece("▁a", -1.0) + piece("[REF]", kind=4)


@pytest.fixture
def read(tmp_path):
    def read(data):
        (tmp_path / "tokenizer.model").write_bytes(data)
        return Tokenizer(read_sentencepiece_vocab(tmp_path / "tokenizer.model", {}))

    return read


A, BLANK_A, BLANK, REF = 260, 261, 259, 262


def test_a_file_written_by_hand(read):
    tokenizer = read(GOOD + TRAINER + NORMALIZER)
    assert tokenizer.encode("a aé") == [BLANK_A, BLANK_A, 3 + 0xC3, 3 + 0xA9]
    assert tokenizer.encode("[REF]a") == [BLANK, REF, A]
    assert tokenizer.decode([BLANK_A, BLANK_A]) == "a a"
    assert tokenizer.decode([BLANK_A, 2, BLANK_A], skip_special=False) == "a</s> a"
    assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.special_ids) == (1, {2}, {0, 1, 2})
    assert tokenizer.named == {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    assert tokenizer.encode_prompt("a") == [1, BLANK_A]


def test_each_text_between_control_tokens_gets_a_blank_and_a_cut_does_not(read):
    tokenizer = read(GOOD + TRAINER + NORMALIZER)
    assert tokenizer.encode("<s>a</s>a", special=True) == [1, BLANK_A, 2, BLANK_A]
    assert tokenizer.encode_segments(["a", "a"]) == [BLANK_A, A]
    assert tokenizer.encode_segments(["", 1, "", "a"]) == [1, BLANK_A]
    assert tokenizer.encode("") == []


def test_no_blank_where_the_file_says_so(read):
    tokenizer = read(GOOD + TRAINER + field(3, field(3, 0) + field(4, 0)))
    assert tokenizer.encode("a") == [A]
    assert tokenizer.decode([BLANK_A]) == " a"


@pytest.mark.parametrize(
    "data",
    [
        GOOD + field(2, field(3, 1) + field(35, 1)) + NORMALIZER,  # Unigram
        GOOD + field(2, field(3, 2)) + NORMALIZER,  # no byte fallback
        GOOD + TRAINER,  # squeezes blanks, as the format has it by default
        GOOD + TRAINER + field(3, field(2, b"map") + field(4, 0)),  # normalises
        GOOD + TRAINER + field(3, field(4, 0) + field(5, 0)),  # keeps blanks
    ],
)
def test_other_kinds_are_refused(read, data):
    with pytest.raises(UnsupportedError, match="byte fallback"):
        read(data)


@pytest.mark.parametrize(
    "data", [b"\xff", b"\x0a\x05ab", b"\x0b", GOOD[:-1], field(1, b"\xff"), b"\x08" + b"\xff" * 11]
)
def test_damage_is_named(read, data):
    with pytest.raises(CheckpointError, match=r"tokenizer\.model is no SentencePiece model"):
        read(data)


def test_a_piece_twice_is_named(read):
    with pytest.raises(CheckpointError, match="'a' twice"):
        read(GOOD + piece("a") + TRAINER + NORMALIZER)


def test_control_pieces_are_text_in_a_users_text():
    tokenizer = Tokenizer(read_sentencepiece_vocab(TINY, {}))
    text = "<s>[INST]<|im_end|></s><unk>"
    assert not tokenizer.special_ids.intersection(tokenizer.encode(text))
    assert tokenizer.decode(tokenizer.encode(text)) == text
