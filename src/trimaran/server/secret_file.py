"""Files that nobody else may read."""

import os
import stat
from pathlib import Path

from trimaran.base.errors import ConfigError

MAX_BYTES = 4 << 20
_OTHERS = stat.S_IRWXO | stat.S_IWGRP  # a group may read: that is how secrets are mounted into containers


def require_secret(path: Path, flag: str) -> None:
    """Raises ``ConfigError`` when others than the owner and its group may read ``path``, or others than it write."""
    try:
        found = path.stat()
    except OSError as error:
        raise ConfigError(f"{flag}: cannot read {path}: {error.strerror}") from error
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"{flag}: {path} is not a file")
    if found.st_uid not in (os.geteuid(), 0):
        raise ConfigError(f"{flag}: {path} belongs to another user; it must be yours or root's")
    if found.st_mode & _OTHERS:
        mode = stat.S_IMODE(found.st_mode)
        raise ConfigError(f"{flag}: others may read or write {path} (mode {mode:o}); run: chmod 600 {path}")


def read_secret(path: Path, flag: str) -> str:
    """The text of a file that is private; raises ``ConfigError``, which shows nothing of it."""
    require_secret(path, flag)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(f"{flag}: {path} has more than {MAX_BYTES:,} bytes")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{flag}: {path} is not UTF-8 text") from None
    except OSError as error:
        raise ConfigError(f"{flag}: cannot read {path}: {error.strerror}") from error
