"""The byte alphabet of GPT-2's BPE, and the exact bytes of every token.

Byte-level BPE writes each byte as one printable character, so that vocabularies can be text files: bytes that are
printable in Latin-1 stand for themselves, the other 68 are U+0100 and up in order. Source: ``bytes_to_unicode`` in
GPT-2's ``encoder.py``.
"""

from array import array
from collections.abc import Collection, Sequence
from itertools import accumulate, pairwise

from trimaran.base.errors import CheckpointError


def _alphabet() -> str:
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return "".join(chr(byte) if byte in printable else chr(next(others)) for byte in range(256))


ALPHABET = _alphabet()  # ALPHABET[byte] is the character that stands for it
_TO_LATIN1 = {ord(char): byte for byte, char in enumerate(ALPHABET)}


def to_byte_level(text: str) -> str:
    """Writes a text's UTF-8 bytes in the alphabet."""
    return "".join(ALPHABET[byte] for byte in text.encode())


class ByteTable:
    """The bytes of each token, kept as one block with offsets: a few MB less than a list of ``bytes``."""

    def __init__(self, tokens: Sequence[str], literal: Collection[int]) -> None:
        """``tokens`` are written in the alphabet, except those whose ids are in ``literal``, which are plain text.

        Raises ``CheckpointError`` on a token with a character outside the alphabet.
        """
        written = list(tokens)
        for token_id in literal:
            written[token_id] = to_byte_level(written[token_id])
        joined = "".join(written)
        if foreign := set(joined).difference(ALPHABET):
            token = next(token for token in written if not foreign.isdisjoint(token))
            raise CheckpointError(f"token {token!r} of the vocabulary is not written in the byte-level alphabet")
        self._bytes = joined.translate(_TO_LATIN1).encode("latin-1")
        self._ends = array("I", accumulate(map(len, written), initial=0))

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
