"""API keys from flags and from a file."""

import hashlib
from pathlib import Path

import pytest

from trimaran.base.errors import ConfigError
from trimaran.server.keys import read_keys
from trimaran.server.tenants import TenantLimits, Tenants

NONE = TenantLimits()
HASHED = hashlib.sha256(b"dave-key").hexdigest()


@pytest.fixture
def file(tmp_path):
    def write(text: str | bytes, mode: int = 0o600) -> str:
        path = tmp_path / "keys"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        path.chmod(mode)
        return str(path)

    return write


def owners(tenants: Tenants, *keys: str) -> list[str | None]:
    found = [tenants.of([f"Bearer {key}".encode()]) for key in keys]
    return [None if tenant is None else tenant.name for tenant in found]


def test_keys_of_flags_and_of_a_file(file):
    path = file(
        "# comment\n\n  a-1 name=alice requests=60 tokens=1k concurrency=3\n"
        f"a-2\tname=alice\nbob\nsha256:{HASHED} name=dave\n"
    )
    keys = read_keys(["flag"], path, TenantLimits(requests_per_minute=5))
    tenants = Tenants(keys, NONE, own_caches=False)
    assert owners(tenants, "flag", "a-1", "a-2", "bob", "dave-key") == ["key-1", "alice", "alice", "line-5", "dave"]
    assert owners(tenants, "", "a-3", "A-1", "name=alice", HASHED, f"sha256:{HASHED}") == [None] * 6
    limits = {key.tenant: key.limits for key in keys}
    assert limits["alice"] == TenantLimits(60, 1000, 3)
    assert limits["line-5"] == limits["key-1"] == TenantLimits(requests_per_minute=5)
    assert tenants.of([b"Bearer a-1"]) is tenants.of([b"bearer  a-2 "])


@pytest.mark.parametrize("headers", [[], [b""], [b"a-1"], [b"Basic a-1"], [b"Bearer a-1", b"Bearer a-1"], [b"\xff"]])
def test_nobodys(file, headers):
    assert Tenants(read_keys([], file("a-1"), NONE), NONE, own_caches=False).of(headers) is None


def test_without_keys_there_is_anybody():
    assert Tenants([], NONE, own_caches=True).of([]).name == "anybody"


def test_own_caches_have_salts_of_one_length_that_depend_on_the_name(file):
    tenants = Tenants(read_keys([], file("a name=alice\nb name=alice\nc name=bob"), NONE), NONE, own_caches=True)
    a, b, c = (tenants.of([f"Bearer {key}".encode()]).salt for key in "abc")
    assert a == b != c
    assert len(a) == len(c) == 32
    assert Tenants(read_keys(["a"], None, NONE), NONE, own_caches=False).of([b"Bearer a"]).salt == ""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no key"),
        ("# nothing\n", "holds no key"),
        ("k secret-part", "line 1: after the key come"),
        ("\nk requests=0", "line 2: requests= takes a whole number from 1 on"),
        ("k tokens=1.5", "tokens= takes a whole number"),
        ("k concurrency=-1", "concurrency= takes a whole number"),
        ("k name=", "a name has up to 64"),
        ("k name=a/b", "a name has up to 64"),
        ("k name=a\nl name=a requests=1", "line 2: the first key of a has its settings"),
        ("k\nk", "given twice"),
        (f"dave-key\nsha256:{HASHED}", "given twice"),
        (b"\xff\xfe", "not UTF-8"),
        ("k\n" * 10_001, "there may be 10000"),
    ],
)
def test_wrong_files(file, text, says):
    with pytest.raises(ConfigError, match=r"API key|--api-key-file") as caught:
        read_keys([], file(text), NONE)
    assert says in str(caught.value)
    assert "secret-part" not in str(caught.value)


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o620, 0o602])
def test_a_file_that_others_may_read_or_write_is_refused(file, mode):
    with pytest.raises(ConfigError, match=r"others may read or write .*chmod 600"):
        read_keys([], file("k", mode), NONE)


@pytest.mark.parametrize("mode", [0o400, 0o440, 0o640])
def test_a_group_may_read(file, mode):
    assert read_keys([], file("k", mode), NONE)


def test_no_file(tmp_path: Path):
    with pytest.raises(ConfigError, match="--api-key-file: cannot read"):
        read_keys([], str(tmp_path / "none"), NONE)
    with pytest.raises(ConfigError, match="is not a file"):
        read_keys([], str(tmp_path), NONE)
