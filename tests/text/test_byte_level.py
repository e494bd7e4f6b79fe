import pytest

from trimaran.base.errors import CheckpointError
from trimaran.text.byte_level import ALPHABET, byte_level_table, to_byte_level


def test_the_alphabet_is_gpt2s():
    assert len(set(ALPHABET)) == 256
    assert ALPHABET[ord("A")] == "A"
    assert ALPHABET[ord(" ")] == "Ġ"
    assert ALPHABET[ord("\n")] == "Ċ"
    assert ALPHABET[0] == "Ā"
    assert ALPHABET[0xAD] == "Ń"  # the last of the 68 that have no printable form


def test_the_table_gives_each_tokens_bytes():
    table = byte_level_table(["hĠi", to_byte_level("é".encode()), "<|a b é|>", ""], literal=[2])
    assert [table[i] for i in range(4)] == [b"h i", "é".encode(), "<|a b é|>".encode(), b""]
    assert len(table) == 4


def test_a_token_outside_the_alphabet_is_named():
    with pytest.raises(CheckpointError, match="'x y'"):
        byte_level_table(["a", "x y"], [])
