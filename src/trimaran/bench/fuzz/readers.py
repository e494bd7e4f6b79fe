"""Damaged model files, templates and manifests, read one after the other by a process that may die of it."""

import json
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Self

from trimaran.bench.fuzz.cases import write_case
from trimaran.bench.fuzz.tally import Finding, Tally, counted

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


def fuzz_readers(
    seed: int,
    scratch: Path,
    tally: Tally,
    more: Callable[[], bool],
    *,
    reader: Reader | None = None,
    keep: Path | None = None,
    corpus: Path | None = None,
    first: int = 0,
) -> None:
    """Runs cases ``seed/first``, ``seed/first+1``... in ``scratch`` for as long as ``more()`` says so."""
    with reader or Reader() as process:
        for number in counted(first, more):
            case = f"{seed}/{number}"
            folder = scratch / "case"
            folder.mkdir()
            try:
                kind, path, wrong = write_case(Random(case), folder, corpus)
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
