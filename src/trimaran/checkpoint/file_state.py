"""What the file system says of a file, by which one tells that nobody has written to it since."""

import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from trimaran.base.errors import CheckpointError

SETTLED_SECONDS = 2.0  # file systems tell times no finer than this, some of them


class FileState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Times are in nanoseconds. ``changed`` is the system's own: whoever writes to the file cannot set it back."""

    name: str
    size: int
    modified: int
    changed: int
    inode: int


def file_states(folder: Path, names: Iterable[str]) -> list[FileState]:
    """States of files in ``folder``, links followed; raises ``CheckpointError`` naming one that cannot be looked at."""
    states = []
    for name in names:
        try:
            stat = (folder / name).stat()
        except OSError as error:
            raise CheckpointError(f"cannot read {folder / name}: {error.strerror}") from error
        states.append(FileState(name, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino))
    return states


def settled(states: Iterable[FileState]) -> bool:
    """Whether a later write to any of the files is sure to change its state."""
    now = time.time_ns()
    return all(now - state.changed > SETTLED_SECONDS * 1e9 for state in states)
