import pytest

from trimaran.base.errors import CheckpointError
from trimaran.text.byte_level import ALPHABET, ByteTable, to_byte_level


def test_the_alphabet_is_gpt2s():
    assert len(set(ALPHABET)) == 256
    assert ALPHABET[ord("A")] == "A"
    assert ALPHABET[ord(" ")] == "Ġ"
    assert ALPHABET[ord("\n")] == "Ċ"
    assert ALPHABET[0] == "Ā"
    assert ALPHABET[0xAD] == "Ń"  # the last of the 68 that have no printable form


def test_the_table_gives_each_tokens_bytes():
    table = ByteTable(["hĠi", to_byte_level("é"), "<|a b é|>", ""], literal=[2])
    assert [table[i] for i in range(4)] == [b"h i", "é".encode(), "<|a b é|>".encode(), b""]
    assert len(table) == 4


@pytest.mark.parametrize("token_id", [-1, 4, 10**9])
def test_ids_past_the_vocabulary_have_no_bytes(token_id):
    assert ByteTable(["a"] * 4, [])[token_id] == b""


def test_a_token_outside_the_alphabet_is_named():
    with pytest.raises(CheckpointError, match="'x y'"):
        ByteTable(["a", "x y"], [])


def test_the_table_knows_its_longest_token_and_which_bytes_are_no_token():
    table = ByteTable(["a", "b", "ab", "c a"], literal=[3])
    assert table.longest() == 3
    assert table.missing() == bytes(set(range(256)) - set(b"ab"))
    assert ByteTable([], []).longest() == 0
