"""``hf:``: a model from the Hugging Face hub, or from a mirror that speaks its API (``HF_ENDPOINT``).

Source: the hub's HTTP API: ``/api/models/REPO/revision/REV?blobs=true`` lists the files of a commit,
``/REPO/resolve/COMMIT/FILE`` serves one.
"""

import re
from pathlib import PurePosixPath
from urllib.parse import quote

import httpx
import msgspec

from trimaran.base.errors import SourceError
from trimaran.checkpoint import cache
from trimaran.checkpoint.disk_space import demand_space
from trimaran.checkpoint.download import Remote, download_all
from trimaran.checkpoint.environment import CONNECTIONS, hub_endpoint, hub_token
from trimaran.checkpoint.file_record import OURS
from trimaran.checkpoint.gguf_parts import is_later_part, part_names
from trimaran.checkpoint.http_client import get_document, open_client
from trimaran.checkpoint.progress import megabytes
from trimaran.checkpoint.source_spec import HubSource, Pins

_TEXT_SUFFIXES = (".json", ".jinja", ".model", ".tiktoken")  # config, tokenizer, chat template
_POOLING = re.compile(r"[0-9]+_Pooling/config\.json")  # of sentence-transformers
_TEXT_NAMES = frozenset({"merges.txt", "vocab.txt"})


class _Lfs(msgspec.Struct, frozen=True):
    sha256: str
    size: int


class HubFile(msgspec.Struct, frozen=True):
    """A file of a repository; large ones carry their SHA-256."""

    rfilename: str
    size: int | None = None
    lfs: _Lfs | None = None


class _Listing(msgspec.Struct, frozen=True):
    sha: str  # the commit
    siblings: list[HubFile]


def pull_hub(text: str, source: HubSource, pins: Pins, connections: int = CONNECTIONS) -> cache.CachedModel:
    """Downloads the files of a model (weights, config, tokenizer, template) into the cache; raises ``SourceError``.

    A branch is looked up once: the cache holds the commit that it stood for. The token goes to the hub alone, never to
    the host that it redirects to.
    """
    base = f"{hub_endpoint()}/{quote(source.repo)}/resolve"
    token = hub_token()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with open_client() as client:
        listing = _list(client, source, headers)
        chosen = (
            _parts(listing.siblings, source.file, f"hf:{source.repo}")
            if source.file
            else choose_files(f"hf:{source.repo}", listing.siblings)
        )
        directory = cache.staging(text, listing.sha)
        demand_space(directory, sum(file.size or 0 for file in chosen))
        files = []
        for file in chosen:
            pinned = pins.file if file.rfilename == source.file else None
            sha256 = pinned or (file.lfs.sha256 if file.lfs else None)
            url = f"{base}/{listing.sha}/{quote(file.rfilename)}"
            remote = Remote(url, sha256, file.lfs.size if file.lfs else file.size, headers)
            files.append((remote, directory / flat_name(file.rfilename)))
        records = download_all(client, files, connections)
    ggufs = [record.name for record in records if record.name.endswith(".gguf")]
    return cache.publish(directory, text, records, main=ggufs[0] if ggufs else None, revision=listing.sha)


def choose_files(repo: str, files: list[HubFile]) -> list[HubFile]:
    """Which files make the model: the safetensors with their config and tokenizer, else the only GGUF model there is.

    ``repo`` names it in errors. Only the top directory counts, others hold copies in other formats, but for what says
    how an encoder pools. Raises ``SourceError`` when nothing fits.
    """
    pooling = [file for file in files if _POOLING.fullmatch(file.rfilename)]
    top = [file for file in files if "/" not in file.rfilename and "\\" not in file.rfilename]
    weights = [file for file in top if file.rfilename.endswith(".safetensors")]
    named = [file for file in weights if file.rfilename.startswith("model")]
    if weights:  # some repositories also hold the maker's own copy, as consolidated*.safetensors
        return [*(named or weights), *(file for file in top if _is_text(file.rfilename)), *pooling]
    ggufs = [file for file in top if file.rfilename.endswith(".gguf") and not is_later_part(file.rfilename)]
    if len(ggufs) == 1:
        return _parts(files, ggufs[0].rfilename, repo)
    if ggufs:
        choice = ", ".join(f"{file.rfilename} ({megabytes(file.size or 0)})" for file in ggufs)
        raise SourceError(f"{repo} holds several GGUF files; choose one with #FILE: {choice}")
    if any(file.rfilename.endswith((".bin", ".pt", ".pth")) for file in top):
        raise SourceError(
            f"{repo} has only pickled weights, which can run code when loaded; look for a safetensors one"
        )
    raise SourceError(f"{repo} has no .safetensors or .gguf file in its top directory")


def flat_name(name: str) -> str:
    """What the cache, which has no folders, calls a file of a repository."""
    return name.replace("/", "_") if _POOLING.fullmatch(name) else PurePosixPath(name).name


def _list(client: httpx.Client, source: HubSource, headers: dict[str, str]) -> _Listing:
    url = f"{hub_endpoint()}/api/models/{quote(source.repo)}/revision/{quote(source.revision, safe='')}?blobs=true"
    try:
        return msgspec.json.decode(get_document(client, url, headers).content, type=_Listing)
    except msgspec.DecodeError as error:
        raise SourceError(f"{hub_endpoint()} does not answer as a model hub does: {error}") from error


def _parts(files: list[HubFile], name: str, repo: str) -> list[HubFile]:
    """The GGUF file ``name``, or all parts of the model that it is a part of, in order."""
    found = {file.rfilename: file for file in files}
    names = part_names(name)
    if missing := [part for part in names if part not in found]:
        ggufs = ", ".join(file for file in found if file.endswith(".gguf")) or "none"
        raise SourceError(f"{repo} has no file {missing[0]!r}; its GGUF files: {ggufs}")
    return [found[part] for part in names]


def _is_text(name: str) -> bool:
    if name in OURS:  # in a repository made from somebody's cache; here, those names are ours
        return False
    return name.endswith(_TEXT_SUFFIXES) or name in _TEXT_NAMES
