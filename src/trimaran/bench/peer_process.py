"""A peer with a Python interface as a subject: ``peer_worker.py`` in the peer's own environment, loaded once."""

import json
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trimaran.base.errors import ConfigError, UnsupportedError
from trimaran.bench.cases import Case, Decode, EndToEnd, Mixed, Prefill

WORKER = Path(__file__).with_name("peer_worker.py")
STOP_SECONDS = 10


@dataclass(frozen=True)
class PeerOptions:
    """What a peer is loaded with. ``context`` is the longest sequence, in tokens."""

    model: str
    threads: int
    vocab: int
    context: int
    sequences: int
    cache_gb: int
    kv_cache: str = "u8"  # OpenVINO's names: u8, f16


class PeerProcess:
    """One peer, loaded; raises ``ConfigError`` when ``python`` does not have it, ``UnsupportedError`` when it fails."""

    def __init__(self, name: str, peer: str, python: Path, options: PeerOptions, install: str) -> None:
        """``install`` tells the user what to do when the peer is missing."""
        self.name = name
        self._python, self._install = python, install
        if not python.is_file():
            raise ConfigError(f"{python} is missing: {install}")
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115, close() closes it
        command = [str(python), str(WORKER), peer, json.dumps(asdict(options))]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        try:
            self.version = str(self._answer()["version"])
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def measure(self, case: Case) -> float | None:
        match case:
            case Prefill(tokens):
                return tokens / self._ask(do="serve", requests=[(tokens, 1)])
            case Decode(depth, steps, sequences):
                seconds = self._ask(do="decode", sequences=sequences, depth=depth, steps=steps, limit=case.limit)
                return sequences * steps / seconds
            case EndToEnd(sequences, prompt, output):
                return case.counted / self._ask(do="serve", requests=[(prompt, output)] * sequences)
            case Mixed():
                return case.counted / self._ask(do="serve", requests=case.lengths())

    def close(self) -> None:
        """Ends the process; idempotent."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()  # the worker ends
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def _ask(self, **question: Any) -> float:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended: the answer says so
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        return float(self._answer()["seconds"])

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": self._last_words()}
        if error := answer.get("error"):
            if "ModuleNotFoundError" in error:
                raise ConfigError(f"{self._python} cannot run {self.name} ({error}): {self._install}")
            raise UnsupportedError(f"{self.name} failed: {error}")
        return answer

    def _last_words(self) -> str:
        self._process.wait()
        self._log.seek(0)
        lines = self._log.read().strip().splitlines()
        return lines[-1] if lines else f"it ended with status {self._process.returncode}"
