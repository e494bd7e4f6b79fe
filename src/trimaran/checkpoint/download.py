"""Downloads one file: resumes, tries again, and gives it its name only when its hash is right."""

import hashlib
import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from trimaran.base.errors import SourceError
from trimaran.checkpoint.file_record import FileRecord
from trimaran.checkpoint.http_client import check_status, shown, translated_errors
from trimaran.checkpoint.partial_file import PartialFile
from trimaran.checkpoint.patience import Patience, TransientError
from trimaran.checkpoint.progress import Report, megabytes, progress

WORTHWHILE = 1 << 20  # bytes that must be new for earlier failures to be forgotten
STALL_SECONDS = 60.0
STALL_BYTES = 1 << 14  # a connection that brings fewer in STALL_SECONDS is as good as dead
DISK_RESERVE = 64 << 20  # bytes of the file system that a download leaves free


@dataclass(frozen=True)
class Remote:
    """A file to fetch, and what is known about it beforehand. ``headers`` may hold a login: no other host sees it."""

    url: str
    sha256: str | None = None
    size: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


def download(client: httpx.Client, remote: Remote, target: Path) -> FileRecord:
    """Fetches ``remote`` into ``target`` and returns its record.

    An interrupted download leaves ``<target>.part``, and the next call goes on from there if the server can. A server
    that ignores ranges, or whose file has changed, is read from the start. Raises ``SourceError``: on a wrong hash or
    size (nothing is left behind then), when the disk is too small, or when failures outlast ``Patience``.
    """
    if done := _already_there(remote, target):
        return done
    part = PartialFile(target, remote.url)
    try:
        resumed = part.size > 0
        with progress(target.name) as report:
            _fetch(client, remote, part, report)
            if resumed and not _right(remote, part):  # the old bytes may be the wrong ones
                part.restart()
                _fetch(client, remote, part, report)
        if not _right(remote, part):
            part.discard()
            raise SourceError(
                f"{shown(remote.url)} has SHA-256 {part.sha256}, expected {remote.sha256}: "
                "it was changed or damaged on the way, and has been removed"
            )
        part.finish()
        return FileRecord(target.name, part.sha256, part.size)
    finally:
        part.close()


def demand_space(directory: Path, size: int) -> None:
    """Raises ``SourceError`` when the disk cannot take ``size`` more bytes."""
    free = shutil.disk_usage(directory).free - DISK_RESERVE
    if size > free:
        raise SourceError(
            f"{directory} has room for {megabytes(max(0, free))}, but {megabytes(size)} are needed; "
            "free some space or set TRIMARAN_HOME to a larger disk"
        )


def _already_there(remote: Remote, target: Path) -> FileRecord | None:
    """The file that an earlier pull of several finished before it was interrupted."""
    if not target.exists():
        return None
    with target.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    size = target.stat().st_size
    same = remote.sha256 in (None, sha256) and remote.size in (None, size)
    return FileRecord(target.name, sha256, size) if same else None


def _right(remote: Remote, part: PartialFile) -> bool:
    return remote.sha256 in (None, part.sha256)


def _fetch(client: httpx.Client, remote: Remote, part: PartialFile, report: Report) -> None:
    patience = Patience(f"cannot download {shown(remote.url)}")
    best = part.size
    while part.size == 0 or part.size != (remote.size or part.total):
        try:
            with translated_errors(remote.url):
                _attempt(client, remote, part, report)
            return
        except TransientError as error:
            if part.size >= best + WORTHWHILE:
                best = part.size
                patience.progressed()
            patience.failed(error)


def _attempt(client: httpx.Client, remote: Remote, part: PartialFile, report: Report) -> None:
    """One exchange; returns when the file is complete."""
    headers = {"Accept-Encoding": "identity", **remote.headers}
    if part.size and (part.validator or remote.sha256):  # else nothing would tell old bytes from new ones
        headers["Range"] = f"bytes={part.size}-"
        if part.validator:
            headers["If-Range"] = part.validator
    with client.stream("GET", remote.url, headers=headers) as response:
        if response.status_code == 416:  # the file has become shorter
            part.restart()
            raise TransientError(f"it has no bytes from {headers.get('Range')} on")
        check_status(response)
        if response.status_code == 206:
            total = _resumed_total(response, part)
        else:
            part.restart()
            total = _whole_total(response)
        if remote.size is not None and total not in (None, remote.size):
            part.discard()
            raise SourceError(f"{shown(remote.url)} has {total} bytes, expected {remote.size}: it has been replaced")
        total = remote.size if total is None else total
        part.describe(_validator(response), total)
        _receive(response, part, total, report)


def _receive(response: httpx.Response, part: PartialFile, total: int | None, report: Report) -> None:
    demand_space(part.directory, total - part.size if total else 0)
    report(part.size, total)
    window_end, window_bytes = time.monotonic() + STALL_SECONDS, 0
    checked = part.size
    for chunk in response.iter_raw():
        part.write(chunk)
        report(part.size, total)
        if total is not None and part.size > total:
            part.discard()
            raise SourceError(f"{shown(response.request.url)} sends more than its {total} bytes")
        if total is None and part.size - checked > DISK_RESERVE // 2:  # an endless file must not fill the disk
            demand_space(part.directory, 0)
            checked = part.size
        window_bytes += len(chunk)
        if time.monotonic() > window_end:
            if window_bytes < STALL_BYTES:
                raise TransientError(f"only {window_bytes} bytes came in {STALL_SECONDS:.0f} s")
            window_end, window_bytes = time.monotonic() + STALL_SECONDS, 0
    if total is not None and part.size < total:
        raise TransientError(f"the connection ended after {part.size} of {total} bytes")


def _resumed_total(response: httpx.Response, part: PartialFile) -> int | None:
    stated = response.headers.get("Content-Range", "")
    found = re.fullmatch(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18}|\*)", stated)
    if found is None or int(found[1]) != part.size:
        asked = part.size
        part.restart()
        raise TransientError(f"asked for bytes from {asked} on, got {stated!r}")
    return None if found[2] == "*" else int(found[2])


def _whole_total(response: httpx.Response) -> int | None:
    if response.headers.get("Content-Encoding", "identity") != "identity":  # not what was asked for
        raise SourceError(f"{shown(response.request.url)} comes compressed, so its bytes are not the file's")
    length = response.headers.get("Content-Length", "")
    return int(length) if re.fullmatch(r"\d{1,18}", length) else None


def _validator(response: httpx.Response) -> str | None:
    """What If-Range may hold: a strong ETag, or a date (RFC 9110, 13.1.5)."""
    etag = response.headers.get("ETag")
    if etag and not etag.startswith("W/"):
        return str(etag)
    date = response.headers.get("Last-Modified")
    return str(date) if date else None
