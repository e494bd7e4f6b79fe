"""What a router knows of its workers' prefix caches: which pages of a prompt each has computed before.

Pages are told apart as engines do it, by a chain of SHA-256 over the tokens before them. It is a guess, since workers
evict without saying so, and costs a worse choice at most.
"""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence


def page_keys(prompt: Sequence[int], page_size: int, salt: str) -> list[bytes]:
    """A key for every full page of ``prompt``; equal prefixes of one salt have equal keys."""
    tokens, key, keys = array("i", prompt), salt.encode(), []
    for first in range(0, len(prompt) - page_size + 1, page_size):
        key = hashlib.sha256(key + tokens[first : first + page_size].tobytes()).digest()
        keys.append(key)
    return keys


class KnownPages:
    """The last ``most`` pages that workers have had, the ones used last kept longest."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._workers: OrderedDict[bytes, set[int]] = OrderedDict()

    def leading(self, keys: Sequence[bytes], worker: int) -> int:
        """How many of ``keys``, from the first one on, ``worker`` has had."""
        for number, key in enumerate(keys):
            if worker not in self._workers.get(key, ()):
                return number
        return len(keys)

    def add(self, keys: Sequence[bytes], worker: int) -> None:
        """The worker has computed a prompt with these pages."""
        for key in keys:
            self._workers.setdefault(key, set()).add(worker)
            self._workers.move_to_end(key)
        while len(self._workers) > self._most:
            self._workers.popitem(last=False)

    def forget(self, worker: int) -> None:
        """The worker has started anew."""
        for workers in self._workers.values():
            workers.discard(worker)
