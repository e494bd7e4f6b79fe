"""A start that has to fetch a sharded model first, from a hub that gives each connection little."""

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from trimaran.base.errors import UnsupportedError
from trimaran.bench.capped_hub import COMMIT, REPOSITORY, capped_hub
from trimaran.bench.coldstart import Say, Start, start_server
from trimaran.bench.gguf_split import split_gguf
from trimaran.checkpoint.hashing import hash_files

SHARDS = 4  # that a model of one file is cut into


@dataclass(frozen=True)
class FarStart:
    """Seconds to ready with everything at once, beside one connection, then hashing, then loading."""

    megabytes_per_second: float
    connections: int
    files: int
    size: int
    ours: Start
    fetch: float
    hash: float
    load: float

    @property
    def in_turn(self) -> float:
        return self.fetch + self.hash + self.load

    @property
    def faster(self) -> float:
        return self.in_turn / self.ours.ready

    def to_json(self) -> dict[str, Any]:
        return {
            "megabytes_per_second": self.megabytes_per_second,
            "connections": self.connections,
            "files": self.files,
            "bytes": self.size,
            "ready": self.ours.ready,
            "download": self.ours.download,
            "in_turn": {"download": self.fetch, "hash": self.hash, "load": self.load, "ready": self.in_turn},
            "faster": self.faster,
        }

    def to_text(self) -> str:
        rest = self.ours.ready - self.ours.download
        return "\n".join(
            (
                f"{self.files} files, {self.size / 1e6:.0f} MB, from a hub that gives a connection "
                f"{self.megabytes_per_second:g} MB/s; seconds",
                f"{'':38}{'download':>10}{'hash':>8}{'load':>8}{'ready':>8}",
                f"{'one connection, then hash, then load':38}{self.fetch:10.2f}{self.hash:8.2f}{self.load:8.2f}"
                f"{self.in_turn:8.2f}",
                f"{f'{self.connections} connections, hashed meanwhile':38}{self.ours.download:10.2f}{'-':>8}{rest:8.2f}"
                f"{self.ours.ready:8.2f}",
                f"{self.faster:.1f} times as fast",
            )
        )


def run_far_start(model: Path, megabytes_per_second: float, connections: int, threads: int, say: Say) -> FarStart:
    """Serves the files of ``model``, a GGUF file in parts, and starts a server from there."""
    with tempfile.TemporaryDirectory(prefix="coldstart-") as folder:
        source, here, home = (Path(folder) / name for name in ("source", "here", "home"))
        source.mkdir()
        here.mkdir()
        say("cutting the model into shards")
        files = _shards(model, source)
        flags = ["--threads", str(threads), "--packed-cache-bytes", "0"]
        with capped_hub(files, megabytes_per_second * 1e6) as url:
            say("one connection")
            began = time.perf_counter()
            _fetch_in_turn(url, files, here)
            fetched = time.perf_counter()
            hash_files(here, [file.name for file in files])
            hashed = time.perf_counter()
            say("loading")
            first = here / files[0].name if files[0].suffix == ".gguf" else here
            load = start_server(str(first), [*flags, "--verify", "never"], {})
            say(f"{connections} connections")
            named = f"#{files[0].name}" if files[0].suffix == ".gguf" else ""
            ours = start_server(f"hf:{REPOSITORY}{named}", flags, _environ(url, home, connections))
        size = sum(file.stat().st_size for file in files)
        return FarStart(
            megabytes_per_second, connections, len(files), size, ours, fetched - began, hashed - fetched, load.ready
        )


def _shards(model: Path, folder: Path) -> Sequence[Path]:
    if model.is_dir():
        files = sorted(file for file in model.iterdir() if file.is_file() and not file.name.startswith("trimaran."))
        if sum(file.suffix == ".safetensors" for file in files) < 2:
            raise UnsupportedError(f"{model} is not sharded; take a GGUF file, which is cut into {SHARDS} parts here")
        return files
    return split_gguf(model, folder, SHARDS)


def _fetch_in_turn(url: str, files: Sequence[Path], folder: Path) -> None:
    with httpx.Client(trust_env=False, timeout=60) as client:
        for file in files:
            with (
                client.stream("GET", f"{url}/{REPOSITORY}/resolve/{COMMIT}/{file.name}") as answer,
                (folder / file.name).open("wb") as target,
            ):
                answer.raise_for_status()
                for piece in answer.iter_raw():
                    target.write(piece)


def _environ(url: str, home: Path, connections: int) -> Mapping[str, str]:
    quiet = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"), "")
    return {
        **{name: value for name, value in quiet.items() if name in os.environ},
        "HF_ENDPOINT": url,
        "HF_TOKEN": "",
        "TRIMARAN_HOME": str(home),
        "TRIMARAN_CONNECTIONS": str(connections),
        "TRIMARAN_OFFLINE": "0",
        "HF_HUB_OFFLINE": "0",
    }
