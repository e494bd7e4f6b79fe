import pytest

from trimaran.text.byte_table import ByteTable


@pytest.mark.parametrize("token_id", [-1, 4, 10**9])
def test_ids_past_the_vocabulary_have_no_bytes(token_id):
    assert ByteTable.of([b"a"] * 4)[token_id] == b""


def test_the_table_gives_each_tokens_bytes():
    table = ByteTable.of([b"a", b"", b"\xff\x00", b"bc"])
    assert [table[i] for i in range(len(table))] == [b"a", b"", b"\xff\x00", b"bc"]


def test_the_table_knows_its_longest_token_and_which_bytes_are_no_token():
    table = ByteTable.of([b"a", b"b", b"ab", b"c a"])
    assert table.longest() == 3
    assert table.missing() == bytes(set(range(256)) - set(b"ab"))
    assert ByteTable.of([]).longest() == 0
