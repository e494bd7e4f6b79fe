"""Damaged model files, templates and manifests, read one after the other by a process that may die of it."""

import json
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Self

from trimaran.bench.fuzz.damage import damaged_bytes, damaged_json, damaged_text, json_bytes
from trimaran.bench.fuzz.model_samples import GgufSample, file_bytes, folder_sample, gguf_sample
from trimaran.bench.fuzz.tally import Finding, Tally, counted
from trimaran.bench.fuzz.template_samples import SOURCES, WORDS, wild_template
from trimaran.checkpoint.file_record import MANIFEST
from trimaran.checkpoint.verify import write_model_manifest

MEMORY = 1 << 30  # bytes that one reader may take on top of what it is
CASE_SECONDS = 60.0  # far more than a template's time, which is the longest that is allowed; machines are busy
WORKER = "trimaran.bench.fuzz.reader_worker"


class Reader:
    """The process that reads. One that dies or hangs is replaced."""

    def __init__(self, module: str = WORKER, *, memory: int = MEMORY, seconds: float = CASE_SECONDS) -> None:
        self._command = [sys.executable, "-m", module, str(memory)]
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def read(self, kind: str, path: Path) -> tuple[str, str]:
        """Outcome and detail: the worker's own, or ``crash`` or ``hang``."""
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps({"kind": kind, "path": str(path)}).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            return "crash", self._end()
        if not select.select([process.stdout], [], [], self._seconds)[0]:
            self._end()
            return "hang", f"no answer within {self._seconds:g} s"
        line = process.stdout.readline()
        if not line:
            return "crash", self._end()
        said = json.loads(line)
        return said["outcome"], said["detail"]

    def _start(self) -> subprocess.Popen[bytes]:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        return self._process

    def _end(self) -> str:
        """Kills the process; how it had ended before."""
        process, self._process = self._process, None
        if process is None:
            return ""
        try:
            code: int | None = process.wait(0.5)
        except subprocess.TimeoutExpired:
            code = None
            process.kill()
        with process:  # waits and closes the pipes
            pass
        if code is None:
            return ""
        return f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"


def write_case(random: Random, folder: Path) -> tuple[str, Path, bool]:
    """Writes one case into the empty ``folder``; its kind, what to read, and whether it has to be refused."""
    kind = random.choice(("gguf", "gguf", "folder", "folder", "manifest", "template", "template"))
    return {"gguf": _gguf, "folder": _folder, "manifest": _manifest, "template": _template}[kind](random, folder)


def _gguf(random: Random, folder: Path) -> tuple[str, Path, bool]:
    sample = gguf_sample()
    path = folder / "model.gguf"
    if random.random() < 0.6:
        metadata = damaged_json(random, sample.metadata)
        data = GgufSample(
            {str(key): value for key, value in metadata.items()} if isinstance(metadata, dict) else {}, sample.tensors
        ).build()
    else:
        whole = sample.build()
        body = sum(len(data) + -len(data) % 32 for _, _, data in sample.tensors.values())
        data = damaged_bytes(random, whole, head=len(whole) - body)
    path.write_bytes(data)
    return "gguf", path, False


def _folder(random: Random, folder: Path) -> tuple[str, Path, bool]:
    files = dict(folder_sample())
    name = random.choice(list(files))
    content = files[name]
    if random.random() < 0.25:
        raw = file_bytes(content)
        head = 8 + struct.unpack("<Q", raw[:8])[0] if isinstance(content, tuple) else None
        data = damaged_bytes(random, raw, head)
    elif isinstance(content, tuple):
        data = file_bytes((damaged_json(random, content[0]), content[1]))
    else:
        data = json_bytes(random, damaged_json(random, content))
    _write(folder, files | {name: data})
    return "folder", folder, False


def _manifest(random: Random, folder: Path) -> tuple[str, Path, bool]:
    """A damaged manifest, or a file that is no longer what a right one says."""
    files = {"config.json": b"{}", "tokenizer.json": b"{} ", "model.safetensors": random.randbytes(300)}
    _write(folder, files)
    write_model_manifest(folder)
    if random.random() < 0.3:
        name = random.choice(list(files))
        damaged = damaged_bytes(random, files[name])
        (folder / name).write_bytes(damaged)
        return "manifest", folder, damaged != files[name]
    path = folder / MANIFEST
    right = path.read_bytes()
    value = json.loads(right)
    data = damaged_bytes(random, right) if random.random() < 0.4 else json_bytes(random, damaged_json(random, value))
    path.write_bytes(data)
    try:
        same = json.loads(data) == value
    except (ValueError, RecursionError):
        same = False
    return "manifest", folder, not same


def _template(random: Random, folder: Path) -> tuple[str, Path, bool]:
    wild = random.random() < 0.5
    text = wild_template(random) if wild else damaged_text(random, random.choice(SOURCES), WORDS)
    (folder / "chat_template.jinja").write_bytes(text.encode("utf-8", "surrogateescape"))
    return "template", folder / "chat_template.jinja", False


def _write(folder: Path, files: dict[str, Any]) -> None:
    for name, content in files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else file_bytes(content))


def fuzz_readers(
    seed: int,
    scratch: Path,
    tally: Tally,
    more: Callable[[], bool],
    *,
    reader: Reader | None = None,
    keep: Path | None = None,
    first: int = 0,
) -> None:
    """Runs cases ``seed/first``, ``seed/first+1``... in ``scratch`` for as long as ``more()`` says so."""
    with reader or Reader() as process:
        for number in counted(first, more):
            case = f"{seed}/{number}"
            folder = scratch / "case"
            folder.mkdir()
            try:
                kind, path, wrong = write_case(Random(case), folder)
                began = time.monotonic()
                outcome, detail = process.read(kind, path)
                tally.took(kind, time.monotonic() - began, case)
                tally.counts[kind, outcome] += 1
                if outcome == "read" and wrong:
                    outcome, detail = "missed", "the damage was not noticed"
                if outcome not in ("read", "refused"):
                    kept = None if keep is None else keep / case.replace("/", "-")
                    if tally.note(Finding(kind, f"{outcome}: {detail}", case, kept)) and kept is not None:
                        folder.rename(kept)
            finally:
                _remove(folder)


def _remove(folder: Path) -> None:
    if folder.exists():
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
