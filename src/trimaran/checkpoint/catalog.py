"""The models that Trimaran knows by name: ``trimaran/catalog/*.yaml``, data without code."""

import re
from functools import cache
from importlib.resources import files
from typing import Literal

import msgspec

from trimaran.base.errors import ConfigError
from trimaran.base.formats import KVFormat, WeightFormat
from trimaran.checkpoint.catalog_shape import Shape


class Precision(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Formats that suit one phase of serving."""

    weights: WeightFormat
    cache: KVFormat


class CatalogEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model of the catalogue. The file is called ``<name>.yaml``.

    ``tested``: ``real`` if this very model has been run by the project, ``tiny`` if only a small random model of its
    family was held against an implementation of others, ``no`` if neither. ``from_memory`` lists the keys whose values
    nobody has looked up. ``prefill`` and ``decode`` follow from a rule, unless ``tested`` is ``real``.
    """

    name: str
    source: str  # pypi:, hf: or https:
    family: str
    context: int  # tokens
    licence: str  # SPDX identifier, or LicenseRef- and the vendor's name for it
    description: str  # one line
    tested: Literal["real", "tiny", "no"]
    prefill: Precision
    decode: Precision
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    shape: Shape | None = None
    from_memory: tuple[str, ...] = ()
    size: int | None = None  # bytes on disk
    sha256: str | None = None  # of the model file
    archive_sha256: str | None = None  # of the archive that the file is taken from

    def __post_init__(self) -> None:
        for digest in (self.sha256, self.archive_sha256):
            if digest is not None and (len(digest) != 64 or set(digest) - set("0123456789abcdef")):
                raise ValueError(f"{digest!r} is not a SHA-256 in lower-case hexadecimal")
        if self.context <= 0 or (self.size is not None and self.size <= 0):
            raise ValueError("context and size must be positive")
        if unknown := set(self.from_memory).difference(self.__struct_fields__):
            raise ValueError(f"from_memory names {', '.join(sorted(unknown))}, which is no key")


@cache
def load_catalog() -> dict[str, CatalogEntry]:
    """Every model of the catalogue by name; raises ``ConfigError`` that names the file at fault."""
    found = sorted(files("trimaran.catalog").iterdir(), key=lambda file: file.name)
    entries = [parse_entry(file.name, file.read_bytes()) for file in found if file.name.endswith(".yaml")]
    return {entry.name: entry for entry in entries}


def find_entry(name: str) -> CatalogEntry | None:
    """One model of the catalogue, without reading the others; raises as ``load_catalog`` does."""
    if load_catalog.cache_info().currsize:
        return load_catalog().get(name)
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) is None:
        return None
    file = files("trimaran.catalog") / f"{name}.yaml"
    return parse_entry(file.name, file.read_bytes()) if file.is_file() else None


def parse_entry(file_name: str, text: bytes) -> CatalogEntry:
    """Reads and checks one file of the catalogue."""
    try:
        entry = msgspec.yaml.decode(text, type=CatalogEntry)
    except msgspec.DecodeError as error:  # wrong YAML, and ValidationError: a missing, unknown or mistyped key
        raise ConfigError(f"catalog/{file_name}: {error}") from None
    if file_name != f"{entry.name}.yaml":
        raise ConfigError(f"catalog/{file_name}: the file must be called {entry.name}.yaml, after its model")
    return entry
