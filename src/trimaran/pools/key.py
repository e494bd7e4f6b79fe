"""The key that all processes of a deployment share. Whoever has it may hand pages over; nobody else may."""

import hashlib
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from trimaran.base.errors import ConfigError

KEY_VARIABLE = "TRIMARAN_POOL_KEY"
MIN_KEY_CHARACTERS = 32
MAX_KEY_CHARACTERS = 4096


class PoolKey:
    """Never shown: its repr says nothing, and it goes nowhere but into keyed hashes (BLAKE2b, 32 bytes)."""

    __slots__ = ("_secret",)

    def __init__(self, text: str) -> None:
        """Raises ``ConfigError`` when ``text`` is too short to be a secret."""
        if not MIN_KEY_CHARACTERS <= len(text) <= MAX_KEY_CHARACTERS:
            raise ConfigError(
                f"the key of the pools has {len(text)} characters; it needs {MIN_KEY_CHARACTERS} to "
                f"{MAX_KEY_CHARACTERS}, as `openssl rand -hex 32` makes them"
            )
        self._secret = hashlib.blake2b(text.encode(), digest_size=32).digest()

    def __repr__(self) -> str:
        return "PoolKey(...)"

    def mac(self, purpose: bytes, *parts: bytes) -> bytes:
        """32 bytes that nobody without the key can make, of ``parts`` as they are divided, for this purpose alone."""
        mac = hashlib.blake2b(key=self._secret, digest_size=32)
        for part in (purpose, *parts):
            mac.update(len(part).to_bytes(8, "little"))
            mac.update(part)
        return mac.digest()


def new_key_text() -> str:
    """A key for a deployment that lives and ends with one supervisor."""
    return secrets.token_hex(32)


def read_key_text(file: Path | None, environ: Mapping[str, str] = os.environ) -> str:
    """The key in ``file``, else in ``TRIMARAN_POOL_KEY``, else a new one. It is never an argument: those are public.

    Raises ``ConfigError`` when the file cannot be read, or can be read by others, or the key is too short.
    """
    text = environ.get(KEY_VARIABLE, "").strip() or new_key_text() if file is None else _read_private(file)
    PoolKey(text)
    return text


def _read_private(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            text = opened.read(MAX_KEY_CHARACTERS + 2).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the key of the pools from {file}: {error}") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(f"{file} has the key of the pools and may be read by others: chmod 600 {file}")
    return text
