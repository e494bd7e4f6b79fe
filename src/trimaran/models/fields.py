"""Reads a vendor's key-value pairs strictly: wrong types and missing keys are errors that name the key."""

import math
from collections.abc import Mapping
from typing import Any, Self

from trimaran.base.errors import CheckpointError

MOST_LAYERS = 10_000


class Fields:
    """The pairs of one file, and which of them were read. ``null`` counts as absent.

    ``prefix`` comes before every key that is asked for, and others are not looked at. Each method raises
    ``CheckpointError`` when the value has another type, or is absent and there is no default.
    """

    def __init__(self, values: Mapping[str, Any], where: str, prefix: str = "") -> None:
        self._values = {key: value for key, value in values.items() if key.startswith(prefix)} if prefix else values
        self.prefix = prefix
        self._where = where
        self._read: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return self._values.get(self.prefix + key) is not None

    def with_defaults(self, defaults: Mapping[str, Any]) -> Self:
        """The same pairs, and ``defaults`` where a key is not there at all."""
        return type(self)({**defaults, **self._values}, self._where)

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number of 32 bits; true and false are none."""
        return int(self._required(key, self._whole(key), default))

    def count(self, key: str, default: int | None = None) -> int:
        """A whole number from 1 on."""
        value = self.integer(key, default)
        if value < 1:
            raise CheckpointError(f"{self._where}: {self.prefix}{key} must be at least 1, not {value}")
        return value

    def layers(self, key: str) -> range:
        """The numbers of as many layers as ``key`` says. A damaged file must not make us count further."""
        count = self.integer(key)
        if count > MOST_LAYERS:
            raise CheckpointError(f"{self._where}: {self.prefix}{key} {count} is not a number of layers")
        return range(count)

    def number(self, key: str, default: float | None = None) -> float:
        """A whole or real number; infinity and NaN, which JSON readers let through, are none."""
        value = self._required(key, self._get(key, (int, float), "a number"), default)
        try:
            number = float(value)
        except OverflowError:  # a whole number with hundreds of digits
            number = math.inf
        if not math.isfinite(number):
            raise CheckpointError(f"{self._where}: {self.prefix}{key} must be a finite number, not {value!r:.40}")
        return number

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        return str(self._required(key, self._get(key, str, "a string"), default))

    def flag(self, key: str, default: bool | None = None) -> bool:
        """True or false."""
        return bool(self._required(key, self._get(key, bool, "true or false"), default))

    def optional_integer(self, key: str) -> int | None:
        """A whole number, or ``None`` where the key is absent."""
        value = self._whole(key)
        return None if value is None else int(value)

    def optional_mapping(self, key: str) -> Self | None:
        """The object under ``key`` as fields of its own, or ``None`` where the key is absent."""
        value = self._get(key, Mapping, "an object")
        return None if value is None else type(self)(value, f"{self._where}: {self.prefix}{key}")

    def token_ids(self, key: str) -> frozenset[int]:
        """The token ids under ``key``, which holds one, a list of them, or nothing."""
        value = self._get(key, (int, list), "a token id or a list of them")
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
            raise CheckpointError(f"{self._where}: {self.prefix}{key} must hold token ids, not {value!r}")
        return frozenset(ids)

    def integers(self, key: str) -> frozenset[int]:
        """The whole numbers in the list under ``key``; none where it is absent."""
        values = self._get(key, list, "a list") or []
        if not all(isinstance(i, int) and not isinstance(i, bool) for i in values):
            raise CheckpointError(f"{self._where}: {self.prefix}{key} must hold whole numbers, not {values!r:.80}")
        return frozenset(values)

    def texts(self, key: str) -> list[str]:
        """The strings in the list under ``key``; none where it is absent."""
        values = self._get(key, list, "a list") or []
        if not all(isinstance(i, str) for i in values):
            raise CheckpointError(f"{self._where}: {self.prefix}{key} must hold strings, not {values!r:.80}")
        return list(values)

    def flags(self, key: str) -> list[bool]:
        """The list of true and false under ``key``; empty where it is absent."""
        values = self._get(key, list, "a list") or []
        if not all(isinstance(i, bool) for i in values):
            raise CheckpointError(f"{self._where}: {self.prefix}{key} must hold true and false, not {values!r:.80}")
        return list(values)

    def unread(self) -> list[str]:
        """Keys that have a value and were not read, in file order."""
        return [key for key, value in self._values.items() if value is not None and key not in self._read]

    def _whole(self, key: str) -> Any:
        value = self._get(key, int, "an integer")
        if value is not None and not -(1 << 31) <= value < 1 << 31:
            raise CheckpointError(f"{self._where}: {self.prefix}{key} is no number of 32 bits: {value!s:.40}")
        return value

    def _get(self, key: str, kind: Any, wanted: str) -> Any:
        key = self.prefix + key
        self._read.add(key)
        value = self._values.get(key)
        wrong_bool = isinstance(value, bool) and kind is not bool
        if value is not None and (wrong_bool or not isinstance(value, kind)):
            raise CheckpointError(f"{self._where}: {key} must be {wanted}, not {value!r}")
        return value

    def _required(self, key: str, value: Any, default: Any) -> Any:
        if value is None and default is None:
            raise CheckpointError(f"{self._where} has no {self.prefix}{key}")
        return default if value is None else value
