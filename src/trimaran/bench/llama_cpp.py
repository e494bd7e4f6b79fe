"""llama.cpp as a subject: its own benchmark programs, at its best settings, on the same file and threads."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from trimaran.base.errors import ConfigError, UnsupportedError
from trimaran.bench.cases import Case, Decode, EndToEnd, Prefill

# Bound threads that spin between operators are worth 3-10 % to it.
ENVIRONMENT = {"OMP_PROC_BIND": "true", "OMP_WAIT_POLICY": "active"}
TIMEOUT = 600


class LlamaCpp:
    """One GGUF file in llama.cpp with flash attention on and fp16 pages, its fastest on CPUs with the defaults kept."""

    def __init__(self, programs: Path, model: Path, threads: int, name: str = "llama.cpp") -> None:
        """``programs`` holds llama-bench and llama-batched-bench; raises ``ConfigError`` when it does not."""
        for program in ("llama-bench", "llama-batched-bench"):
            if not (programs / program).is_file():
                raise ConfigError(f"{programs / program} is missing; `make peers` builds it")
        self.name = name
        self._programs = programs
        self._model = model
        self._threads = threads

    def measure(self, case: Case) -> float | None:
        match case:
            case Prefill(tokens):
                return self._bench("-p", tokens, "-n", 0)
            case Decode(depth, steps, 1):
                return self._bench("-p", 0, "-n", steps, "-d", depth)
            case Decode(depth, steps, sequences):
                return float(self._batched(depth, steps, sequences)["speed_tg"])
            case EndToEnd(sequences, prompt, output):
                return sequences * output / float(self._batched(prompt, output, sequences)["t"])
            case _:
                return None

    def close(self) -> None:
        """Holds nothing between measurements."""

    def _bench(self, *arguments: str | int) -> float:
        text = self._run("llama-bench", "-fa", 1, "-r", 1, "-o", "jsonl", *arguments)
        return float(json.loads(text.splitlines()[-1])["avg_ts"])

    def _batched(self, prompt: int, output: int, sequences: int) -> dict[str, Any]:
        context = sequences * (prompt + output)
        shape = ("-npp", prompt, "-ntg", output, "-npl", sequences, "-c", context, "-b", 2048, "-ub", 512, "-no-kvu")
        text = self._run("llama-batched-bench", "-fa", "on", "--output-format", "jsonl", *shape)
        found: dict[str, Any] = json.loads([line for line in text.splitlines() if line.startswith("{")][-1])
        return found

    def _run(self, program: str, *arguments: str | int) -> str:
        command = [
            str(self._programs / program),
            "-m",
            str(self._model),
            "-t",
            str(self._threads),
            *map(str, arguments),
        ]
        done = subprocess.run(
            command, capture_output=True, text=True, env=os.environ | ENVIRONMENT, timeout=TIMEOUT, check=False
        )
        if done.returncode:
            raise UnsupportedError(f"{' '.join(command)} failed: {done.stderr.strip().splitlines()[-1:]}")
        return done.stdout


def llama_cpp_subjects(programs: Path, model: Path, threads: int) -> list[LlamaCpp]:
    """The file as it is and, since llama.cpp has its fastest kernels for Q4_0, a Q4_0 copy of it (made once, lossy)."""
    if model.suffix != ".gguf":
        raise UnsupportedError(f"llama.cpp reads GGUF files only, not {model}")
    as_is = LlamaCpp(programs, model, threads, "llama.cpp as is")
    folder = programs.parent / "models"
    folder.mkdir(exist_ok=True)
    copy = folder / f"{model.stem}.requantised-Q4_0.gguf"
    if not copy.exists():
        part = copy.with_suffix(".part")
        command = [str(programs / "llama-quantize"), "--allow-requantize", str(model), str(part), "Q4_0", str(threads)]
        subprocess.run(command, capture_output=True, check=True, timeout=TIMEOUT)
        part.rename(copy)
    return [as_is, LlamaCpp(programs, copy, threads, "llama.cpp Q4_0")]
