"""Goldens of tokenizers, kept small: of each string's ids only the beginning of a hash."""

import hashlib
import struct
from base64 import b64encode
from collections.abc import Sequence

LENGTH = 4  # characters of a digest: 24 bits
UNLIKE = "-" * LENGTH  # of a string that is not compared


def digest(ids: Sequence[int]) -> str:
    """The beginning of the SHA-256 of ``ids`` as little-endian int32, in base64."""
    return b64encode(hashlib.sha256(struct.pack(f"<{len(ids)}i", *ids)).digest()[:3]).decode()


def differing(answers: Sequence[Sequence[int]], digests: str) -> list[int]:
    """Which of ``answers`` do not have the digest of their place."""
    if len(digests) != LENGTH * len(answers):
        raise ValueError(f"{len(answers)} answers, but digests for {len(digests) // LENGTH}")
    wanted = (digests[at : at + LENGTH] for at in range(0, len(digests), LENGTH))
    return [at for at, (ids, one) in enumerate(zip(answers, wanted, strict=True)) if one not in (digest(ids), UNLIKE)]
