"""What keeps a record as it was written: a keyed hash, or encryption, which is also faster where there is a package and
hardware for it. A seal is of one direction of one connection.
"""

import hashlib
import hmac
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from trimaran.base.errors import TransferError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

UInt8 = npt.NDArray[np.uint8]
Buffer = bytes | bytearray | memoryview

TAG = 16  # bytes
AES = "aes-256-gcm"

_ALTERED = "a record was altered on its way"


class Seal(Protocol):
    """Records are numbered from 0. ``lengths`` are the first bytes of a record, which are always readable."""

    def seal(self, number: int, lengths: bytes, head: bytes, data: memoryview) -> tuple[bytes, Buffer, Buffer]:
        """Tag, head and data as they go over the wire; valid until the next call."""
        ...

    def wire(self, data: UInt8) -> memoryview:
        """Where to read what became of ``data``'s bytes on the wire, before ``open``."""
        ...

    def open(self, number: int, lengths: bytes, tag: bytes, head: bytes, data: UInt8) -> bytes:
        """The head, and ``data`` filled. Raises ``TransferError`` when anything is not as it was written."""
        ...


class HashSeal:
    """BLAKE2b, keyed: everything can be read on the way and nothing changed."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def seal(self, number: int, lengths: bytes, head: bytes, data: memoryview) -> tuple[bytes, Buffer, Buffer]:
        return self._tag(number, lengths, head, data), head, data

    def wire(self, data: UInt8) -> memoryview:
        return data.data.cast("B")

    def open(self, number: int, lengths: bytes, tag: bytes, head: bytes, data: UInt8) -> bytes:
        if not hmac.compare_digest(tag, self._tag(number, lengths, head, data.data.cast("B"))):
            raise TransferError(_ALTERED)
        return head

    def _tag(self, number: int, lengths: bytes, head: bytes, data: memoryview) -> bytes:
        tag = hashlib.blake2b(number.to_bytes(8, "little") + lengths + head, key=self._key, digest_size=TAG)
        tag.update(data)
        return tag.digest()


class AesSeal:
    """AES-256-GCM, head and data apart. The record's number and the part are the nonce: keys are made for one direction
    of one connection, so none is used twice."""

    def __init__(self, key: bytes) -> None:
        cipher = aes_gcm()
        assert cipher is not None
        self._cipher: AESGCM = cipher(hashlib.blake2b(AES.encode(), key=key, digest_size=32).digest())
        self._scratch = memoryview(bytearray())

    def seal(self, number: int, lengths: bytes, head: bytes, data: memoryview) -> tuple[bytes, Buffer, Buffer]:
        sealed = self._cipher.encrypt(_nonce(number, 0), head, lengths)
        wire = self._room(len(data))
        if len(data):
            self._cipher.encrypt_into(_nonce(number, 1), data, lengths, wire)
        return sealed[-TAG:], sealed[:-TAG], wire

    def wire(self, data: UInt8) -> memoryview:
        return self._room(data.nbytes)

    def open(self, number: int, lengths: bytes, tag: bytes, head: bytes, data: UInt8) -> bytes:
        from cryptography.exceptions import InvalidTag

        try:
            opened = self._cipher.decrypt(_nonce(number, 0), head + tag, lengths)
            if data.nbytes:
                self._cipher.decrypt_into(_nonce(number, 1), self._room(data.nbytes), lengths, data.data.cast("B"))
        except InvalidTag:
            raise TransferError(_ALTERED) from None
        return opened

    def _room(self, size: int) -> memoryview:
        """For ``size`` bytes of data and their tag."""
        if size == 0:
            return self._scratch[:0]
        if len(self._scratch) < size + TAG:
            self._scratch = memoryview(bytearray(size + TAG))
        return self._scratch[: size + TAG]


def aes_gcm() -> "type[AESGCM] | None":
    """None where the package ``cryptography`` is not installed, or older than 47, which cannot do it in place."""
    try:
        from cryptography import __version__ as version
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        return None
    return AESGCM if int(version.partition(".")[0]) >= 47 else None


def ciphers() -> list[str]:
    """Names of the ways to encrypt that there are here."""
    return [] if aes_gcm() is None else [AES]


def _nonce(number: int, part: int) -> bytes:
    return number.to_bytes(11, "little") + bytes([part])
