"""The exact bytes of every token."""

from array import array
from collections.abc import Iterable
from itertools import accumulate, pairwise
from typing import Self


class ByteTable:
    """The bytes of each token, kept as one block with offsets: a few MB less than a list of ``bytes``."""

    def __init__(self, data: bytes, lengths: Iterable[int]) -> None:
        """``data`` is all tokens' bytes in the order of their ids, ``lengths`` how many bytes each has."""
        self._bytes = data
        self._ends = array("I", accumulate(lengths, initial=0))

    @classmethod
    def of(cls, tokens: Iterable[bytes]) -> Self:
        """A table of these tokens, whose places are their ids."""
        listed = list(tokens)
        return cls(b"".join(listed), map(len, listed))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def longest(self) -> int:
        """How many bytes the longest token stands for."""
        return max((end - begin for begin, end in pairwise(self._ends)), default=0)

    def missing(self) -> bytes:
        """The bytes that are no token by themselves: text loses them, since merges begin with single bytes."""
        single = {self._bytes[begin] for begin, end in pairwise(self._ends) if end - begin == 1}
        return bytes(byte for byte in range(256) if byte not in single)

    def __getitem__(self, token_id: int) -> bytes:
        """The token's bytes; ``b""`` for ids past the vocabulary, which padded embedding matrices have."""
        if not 0 <= token_id < len(self):
            return b""
        return self._bytes[self._ends[token_id] : self._ends[token_id + 1]]
