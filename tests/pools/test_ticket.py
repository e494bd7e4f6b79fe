"""Tickets and the key: what was not made with it is not read."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimaran.base.errors import ConfigError, TransferError
from trimaran.pools.key import PoolKey, new_key_text, read_key_text
from trimaran.pools.ticket import MAX_TICKET_BYTES, Ticket, TicketPages, open_ticket, sealed

from .transfers import ticket

KEY = PoolKey("k" * 32)


def test_a_ticket_comes_back_as_it_was() -> None:
    of = ticket()
    again = open_ticket(of.seal(KEY), KEY)
    assert again == of
    assert again.digest == of.digest


@given(st.integers(0, 10**6), st.integers(1, 255))
def test_not_a_byte_may_change(at: int, difference: int) -> None:
    data = bytearray(ticket().seal(KEY))
    data[at % len(data)] ^= difference
    with pytest.raises(TransferError, match="seal"):
        open_ticket(bytes(data), KEY)


@given(st.binary(max_size=200))
def test_noise_is_refused(data: bytes) -> None:
    with pytest.raises(TransferError, match="seal"):
        open_ticket(data, KEY)


@given(st.binary(max_size=200))
def test_noise_under_the_right_seal_is_refused(data: bytes) -> None:
    with pytest.raises(TransferError, match=r"malformed|version"):
        open_ticket(sealed(data, KEY), KEY)


def test_another_deployments_ticket_is_refused() -> None:
    with pytest.raises(TransferError, match="another deployment"):
        open_ticket(ticket().seal(KEY), PoolKey("other" * 10))


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"version": 7}, "version 7"),
        ({"lease": 0.0}, "lease"),
        ({"lease": float("nan")}, "lease"),
        ({"lease": 1e9}, "lease"),
        ({"tokens": 0}, "tokens"),
        ({"transfer": ""}, "transfer"),
        ({"groups": []}, "groups"),
        ({"groups": [TicketPages(0, [1, 2], [1])]}, "as many tags as pages"),
        ({"groups": [TicketPages(0, [-1], [1])]}, "groups"),
        ({"token_digest": b"short"}, "token_digest"),
    ],
)
def test_impossible_tickets_are_refused(changes: dict[str, object], what: str) -> None:
    with pytest.raises(TransferError, match=what):
        open_ticket(ticket(**changes).seal(KEY), KEY)


def test_unknown_fields_and_long_tickets_are_refused() -> None:
    fields = msgspec.to_builtins(ticket(), builtin_types=(bytes,)) | {"also": 1}
    with pytest.raises(TransferError, match="also"):
        open_ticket(sealed(msgspec.msgpack.encode(fields), KEY), KEY)
    with pytest.raises(TransferError, match="at most"):
        open_ticket(bytes(MAX_TICKET_BYTES + 1), KEY)


def test_the_key_is_read_from_a_private_file_or_the_environment(tmp_path: Path) -> None:
    text = new_key_text()
    file = tmp_path / "key"
    file.write_text(text + "\n")
    file.chmod(0o600)
    assert read_key_text(file, {}) == text
    assert read_key_text(file, {"TRIMARAN_POOL_KEY": "x" * 40}) == text
    assert read_key_text(None, {"TRIMARAN_POOL_KEY": text}) == text
    assert len({read_key_text(None, {}) for _ in range(3)}) == 3
    assert text not in repr(PoolKey(text))
    file.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_key_text(file, {})
    with pytest.raises(ConfigError, match="cannot read"):
        read_key_text(tmp_path / "none", {})
    with pytest.raises(ConfigError, match="5 characters"):
        read_key_text(None, {"TRIMARAN_POOL_KEY": "short"})


def test_purposes_and_parts_are_kept_apart() -> None:
    macs = {KEY.mac(b"a", b"bc"), KEY.mac(b"ab", b"c"), KEY.mac(b"a", b"b", b"c"), KEY.mac(b"a", b"bc", b"")}
    assert len(macs) == 4


def test_the_digest_covers_every_field() -> None:
    of = ticket()
    changed = [
        msgspec.structs.replace(of, transfer="x"),
        msgspec.structs.replace(of, lease=1.0),
        msgspec.structs.replace(of, groups=of.groups[:1]),
    ]
    assert len({each.digest for each in [of, *changed]}) == 4
    assert Ticket.__struct_fields__
