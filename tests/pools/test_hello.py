"""Whatever the other side says of itself, the answer is that it fits or a ``PeerError``."""

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimaran.base.errors import PeerError
from trimaran.pools.hello import check_hello, decode_hello, encode_hello
from trimaran.pools.layout import check_layouts, layout_data

from .transfers import LAYOUT, hello

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=8) | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from([*layout_data(LAYOUT), "more"])


def test_it_comes_back_as_it_was() -> None:
    for role in ("sender", "receiver"):
        assert decode_hello(encode_hello(hello(role))) == hello(role)
    check_hello(hello("sender"), hello("receiver"))
    check_hello(hello("receiver"), hello("sender"))


@given(st.binary(max_size=100))
def test_noise_is_refused(noise: bytes) -> None:
    with pytest.raises(PeerError):
        decode_hello(noise)


@given(st.sampled_from([*hello("sender").__struct_fields__, "more"]), PLAIN)
def test_wrong_fields_are_refused(name: str, value: Any) -> None:
    fields = msgspec.to_builtins(hello("sender")) | {name: value}
    with suppress(PeerError):
        check_hello(hello("receiver"), decode_hello(msgspec.msgpack.encode(fields)))


@given(st.dictionaries(NAMES, PLAIN, max_size=3))
def test_strange_layouts_are_refused(changes: dict[str, Any]) -> None:
    mine = layout_data(LAYOUT)
    for giver, taker in ((mine, mine | changes), (mine | changes, mine)):
        with suppress(PeerError):
            check_layouts(giver, taker)
            assert all(mine[name] == changes[name] for name in changes if name not in ("page_format", "scales"))


def test_no_two_sides_of_one_kind() -> None:
    for role in ("sender", "receiver"):
        with pytest.raises(PeerError, match=f"both would be the {role}"):
            check_hello(hello(role), hello(role))
