"""Packed weights on disk: whole or not at all, bounded, and every changed bit is found."""

import fcntl
import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from trimaran.checkpoint import packs
from trimaran.checkpoint.pack_memory import PackMemory
from trimaran.checkpoint.packs import PackDamagedError, find_pack, write_pack

LIMIT = 1 << 20
WEIGHTS = np.random.default_rng(0).integers(0, 256, 10_000, np.uint8)


@pytest.fixture(autouse=True)
def small_pieces(cache_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "PIECE", 1000)
    monkeypatch.setattr("trimaran.checkpoint.pack_memory.PIECE", 1000)
    monkeypatch.setattr(packs, "FREE_PART", 1 << 40)
    monkeypatch.setattr("trimaran.checkpoint.disk_space.DISK_RESERVE", 0)


def write(name: str = "m-1", size: int = len(WEIGHTS), limit: int = LIMIT) -> bool:
    return write_pack(name, name.partition("-")[0] + "-", WEIGHTS[:size], "about it", limit)


def read(name: str = "m-1", *, check: bool = True) -> np.ndarray:
    pack = find_pack(name)
    assert pack is not None
    with closing(PackMemory(pack, check=check)) as memory:
        memory.wait()
        return memory.memory.copy()


def names(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "packs").iterdir())


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("size", [1, 999, 1000, 1001, 10_000])
def test_what_was_written_is_read(size: int, check: bool) -> None:
    assert write(size=size)
    pack = find_pack("m-1")
    assert pack is not None
    assert (pack.size, pack.about) == (size, "about it")
    np.testing.assert_array_equal(read(check=check), WEIGHTS[:size])


def test_memory_is_read_only_and_stays_when_the_pack_has_gone() -> None:
    write()
    pack = find_pack("m-1")
    assert pack is not None
    for check in (True, False):
        memory = PackMemory(pack, check=check)
        memory.wait()
        memory.close()
        assert not memory.memory.flags.writeable
        if not check:
            pack.remove()
        np.testing.assert_array_equal(memory.memory, WEIGHTS)
    assert find_pack("m-1") is None


@pytest.mark.parametrize("at", [0, 1234, 9_999])
def test_a_flipped_bit_is_found_where_one_looks(cache_home: Path, at: int) -> None:
    write()
    path = cache_home / "packs" / "m-1" / "weights.bin"
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)
    with pytest.raises(PackDamagedError, match=f"bytes {at // 1000 * 1000} to "):
        read()
    assert read(check=False)[at] == WEIGHTS[at] ^ 4


def test_a_file_cut_short_or_a_note_that_was_changed_is_no_pack(cache_home: Path) -> None:
    write()
    folder = cache_home / "packs" / "m-1"
    whole = (folder / "pack.json").read_bytes()
    for old, new in ((b"about it", b"about us"), (b'"size":10000', b'"size":10001'), (b"}", b""), (whole, b"\xff")):
        assert old in whole
        (folder / "pack.json").write_bytes(whole.replace(old, new))
        assert find_pack("m-1") is None
    (folder / "pack.json").write_bytes(whole)
    assert find_pack("m-1") is not None
    with (folder / "weights.bin").open("r+b") as file:
        file.truncate(9_999)
    assert find_pack("m-1") is None


def test_what_others_may_write_to_is_not_used(cache_home: Path) -> None:
    write()
    folder = cache_home / "packs" / "m-1"
    for path in (folder.parent, folder, folder / "weights.bin", folder / "pack.json"):
        mode = path.stat().st_mode
        path.chmod(mode | 0o020)
        assert find_pack("m-1") is None, path
        path.chmod(mode)
    assert find_pack("m-1") is not None


def test_all_packs_together_have_a_limit(cache_home: Path) -> None:
    assert not write("a-1", limit=9_999)
    for number, name in enumerate(("a-1", "b-1", "c-1")):
        assert write(name, limit=35_000)
        os.utime(cache_home / "packs" / name / "pack.json", (1000 + number, 1000 + number))
    used = find_pack("a-1")
    assert used is not None
    used.used()
    assert write("d-1", limit=35_000)
    assert names(cache_home) == ["a-1", "c-1", "d-1"], "b had not been of use for longest"


def test_a_pack_of_another_build_is_replaced(cache_home: Path) -> None:
    write("m-1")
    write("n-1")
    write("m-2")
    assert names(cache_home) == ["m-2", "n-1"]


def test_a_disk_that_is_too_small_is_left_alone(cache_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "FREE_PART", 1)
    with pytest.raises(Exception, match="has room for"):
        write()
    assert names(cache_home) == []


def test_stopped_half_way_it_leaves_nothing(cache_home: Path) -> None:
    answers = iter([False, False, False, True])
    assert not write_pack("m-1", "m-", WEIGHTS, "", LIMIT, lambda: next(answers))
    assert names(cache_home) == []


def test_only_one_process_writes(cache_home: Path) -> None:
    lock = cache_home / "locks" / "packs.lock"
    lock.parent.mkdir(parents=True)
    with lock.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert not write()
    assert write()


_KILLED = """
import sys, time, numpy as np
from trimaran.checkpoint import packs
packs.PIECE, packs.FREE_PART = 1000, 1 << 40
asked = 0
def stopped():
    global asked
    asked += 1
    if asked == 5:
        print("half way", flush=True)
        time.sleep(60)
packs.write_pack("m-1", "m-", np.zeros(10_000, np.uint8), "", 1 << 20, stopped)
"""


def test_a_process_killed_while_writing_leaves_no_pack(cache_home: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", _KILLED], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"half way\n"
        process.send_signal(signal.SIGKILL)
    assert names(cache_home) == ["m-1.part"]
    assert find_pack("m-1") is None
    assert write()
    assert names(cache_home) == ["m-1"]
    np.testing.assert_array_equal(read(), WEIGHTS)
