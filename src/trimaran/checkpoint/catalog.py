"""The models that Trimaran knows by name: ``trimaran/catalog/*.yaml``, data without code."""

from functools import cache
from importlib.resources import files

import msgspec

from trimaran.base.errors import ConfigError


class CatalogEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model of the catalogue. The file is called ``<name>.yaml``."""

    name: str
    source: str  # pypi:, hf: or https:
    family: str
    context: int  # tokens
    licence: str  # SPDX identifier
    description: str  # one line
    size: int  # bytes on disk
    sha256: str | None = None  # of the model file
    archive_sha256: str | None = None  # of the archive that the file is taken from

    def __post_init__(self) -> None:
        for digest in (self.sha256, self.archive_sha256):
            if digest is not None and (len(digest) != 64 or set(digest) - set("0123456789abcdef")):
                raise ValueError(f"{digest!r} is not a SHA-256 in lower-case hexadecimal")
        if self.context <= 0 or self.size <= 0:
            raise ValueError("context and size must be positive")


@cache
def load_catalog() -> dict[str, CatalogEntry]:
    """Every model of the catalogue by name; raises ``ConfigError`` that names the file at fault."""
    found = sorted(files("trimaran.catalog").iterdir(), key=lambda file: file.name)
    entries = [parse_entry(file.name, file.read_bytes()) for file in found if file.name.endswith(".yaml")]
    return {entry.name: entry for entry in entries}


def parse_entry(file_name: str, text: bytes) -> CatalogEntry:
    """Reads and checks one file of the catalogue."""
    try:
        entry = msgspec.yaml.decode(text, type=CatalogEntry)
    except msgspec.DecodeError as error:  # wrong YAML, and ValidationError: a missing, unknown or mistyped key
        raise ConfigError(f"catalog/{file_name}: {error}") from None
    if file_name != f"{entry.name}.yaml":
        raise ConfigError(f"catalog/{file_name}: the file must be called {entry.name}.yaml, after its model")
    return entry
