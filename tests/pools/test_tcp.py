"""What is special about links over TCP."""

import logging
import socket

import pytest

from trimaran.base.errors import ConfigError
from trimaran.pools.tcp import TcpTransport, join_address, split_address

from .transfers import KEY, hello

TCP = TcpTransport(KEY)


def test_it_listens_on_loopback_unless_told() -> None:
    listener = TCP.listen(hello("receiver"))
    host, port = split_address(listener.address)
    assert host == "127.0.0.1"
    assert port > 0
    listener.close()


@pytest.mark.parametrize("address", ["", "host", ":1", "host:", "host:http", "host:65536", "host:-1"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        split_address(address)


@pytest.mark.parametrize("parts", [("127.0.0.1", 5), ("::1", 80), ("name.example", 65535)])
def test_addresses_come_back(parts: tuple[str, int]) -> None:
    assert split_address(join_address(*parts)) == parts


def test_an_address_that_cannot_be_had_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=address):
            TCP.listen(hello("receiver"), address)


class Peer:
    """A connection from somewhere."""

    def __init__(self, host: str) -> None:
        self._host = host

    def getpeername(self) -> tuple[str, int]:
        return self._host, 1


@pytest.mark.parametrize(("host", "said"), [("192.0.2.7", True), ("fe80::1%eth0", True), ("127.0.0.1", False)])
def test_pages_that_others_could_read_are_warned_of(host: str, said: bool, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        TCP.check_unencrypted(Peer(host), hello("sender"))  # type: ignore[arg-type]
    assert ("unencrypted" in caplog.text) == said
