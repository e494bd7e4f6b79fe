"""What is noted of a model's files, and the names of what we write beside them."""

import msgspec

RECORD = "trimaran.json"
MANIFEST = "trimaran.manifest.json"
SIGNATURE = MANIFEST + ".sig"
OURS = frozenset({RECORD, MANIFEST, SIGNATURE})


class FileRecord(msgspec.Struct, frozen=True):
    """A file of a model: name, SHA-256 (hex) and size in bytes."""

    name: str
    sha256: str
    size: int
