"""The byte alphabet of GPT-2's BPE.

Byte-level BPE writes each byte as one printable character, so that vocabularies can be text files: bytes that are
printable in Latin-1 stand for themselves, the other 68 are U+0100 and up in order. Source: ``bytes_to_unicode`` in
GPT-2's ``encoder.py``.
"""

from collections.abc import Collection, Sequence

from trimaran.base.errors import CheckpointError
from trimaran.text.byte_table import ByteTable


def _alphabet() -> str:
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return "".join(chr(byte) if byte in printable else chr(next(others)) for byte in range(256))


ALPHABET = _alphabet()  # ALPHABET[byte] is the character that stands for it
_TO_LATIN1 = {ord(char): byte for byte, char in enumerate(ALPHABET)}
_FROM_LATIN1 = dict(enumerate(ALPHABET))


def to_byte_level(data: bytes) -> str:
    """Writes bytes in the alphabet."""
    return data.decode("latin-1").translate(_FROM_LATIN1)


def byte_level_table(tokens: Sequence[str], literal: Collection[int]) -> ByteTable:
    """The bytes of ``tokens``, written in the alphabet except those whose ids are in ``literal``: these are plain text.

    Raises ``CheckpointError`` on a token with a character outside the alphabet.
    """
    written = list(tokens)
    for token_id in literal:
        written[token_id] = to_byte_level(written[token_id].encode())
    joined = "".join(written)
    if foreign := set(joined).difference(ALPHABET):
        token = next(token for token in written if not foreign.isdisjoint(token))
        raise CheckpointError(f"token {token!r} of the vocabulary is not written in the byte-level alphabet")
    return ByteTable(joined.translate(_TO_LATIN1).encode("latin-1"), map(len, written))
