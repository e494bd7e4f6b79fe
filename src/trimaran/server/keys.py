"""Reads API keys: from flags, and from a file with one a line.

    # comment
    sk-alice-1  name=alice  requests=60  tokens=100k  concurrency=4
    sk-alice-2  name=alice
    sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08  name=bob

A key may stand there as its SHA-256, so that the file gives none away. ``requests`` and ``tokens`` are a minute's.
Keys with the same name are one tenant's; the first of them has its settings. What a line leaves out is as in the flags.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from trimaran.base.config import parse_size
from trimaran.base.errors import ConfigError
from trimaran.server.secret_file import read_secret
from trimaran.server.tenants import Key, TenantLimits

MAX_KEYS = 10_000  # all of them are compared with each request's
_HASHED = re.compile(r"sha256:([0-9a-fA-F]{64})")
_NAME = re.compile(r"[\w.@-]{1,64}")
_SETTINGS = {"requests": "requests_per_minute", "tokens": "tokens_per_minute", "concurrency": "concurrency"}


def read_keys(flags: Sequence[str], file: str | None, defaults: TenantLimits) -> tuple[Key, ...]:
    """All keys, those of ``flags`` as tenants of their own; raises ``ConfigError`` that shows none."""
    keys = [Key(_digest(key), f"key-{number}", defaults) for number, key in enumerate(flags, 1)]
    if file is not None:
        keys += _parse(read_secret(Path(file), "--api-key-file"), file, defaults)
        if not keys:
            raise ConfigError(f"--api-key-file {file} holds no key")
    if len(keys) > MAX_KEYS:
        raise ConfigError(f"there are {len(keys)} API keys; there may be {MAX_KEYS}")
    if len({key.digest for key in keys}) < len(keys):
        raise ConfigError("an API key is given twice")
    return tuple(keys)


def _parse(text: str, file: str, defaults: TenantLimits) -> Iterator[Key]:
    limits: dict[str, TenantLimits] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        where = f"--api-key-file {file}, line {number}"
        names = [word.removeprefix("name=") for word in words[1:] if word.startswith("name=")]
        settings = dict(_setting(word, where) for word in words[1:] if not word.startswith("name="))
        name = names[-1] if names else f"line-{number}"
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{where}: a name has up to 64 letters, digits and . _ - @")
        if name not in limits:
            limits[name] = replace(defaults, **settings)
        elif settings:
            raise ConfigError(f"{where}: the first key of {name} has its settings; this one may have the name alone")
        hashed = _HASHED.fullmatch(words[0])
        yield Key(bytes.fromhex(hashed[1]) if hashed else _digest(words[0]), name, limits[name])


def _setting(word: str, where: str) -> tuple[str, int]:
    name, _, value = word.partition("=")
    if name not in _SETTINGS:  # it may be a part of a key, so it is not shown
        raise ConfigError(f"{where}: after the key come name=, requests=, tokens= and concurrency= only")
    count = parse_size(value)
    if count is None or count < 1:
        raise ConfigError(f"{where}: {name}= takes a whole number from 1 on")
    return _SETTINGS[name], count


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
