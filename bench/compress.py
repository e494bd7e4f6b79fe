"""How long ``trimaran compress`` takes and how much memory, on a model of random weights.

``python bench/compress.py --megabytes 1500 --format int4`` writes the model into a temporary folder (``TMPDIR``),
compresses it in a process of its own and prints seconds and the peak of that process's memory. Linux.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

ROWS, COLS = 2048, 4096  # of each matrix: 16 MiB in bf16

CHILD = """
import sys, time
from pathlib import Path
from trimaran.checkpoint import open_checkpoint
from trimaran.compress.codebook import Codebook
from trimaran.compress.recipe import Fp8Blocks, Int4
from trimaran.compress.run import compress
source, fmt, shard = sys.argv[1:]
RECIPES = {"int4": Int4(), "fp8": Fp8Blocks(), "codebook4": Codebook(4), "codebook3": Codebook(3)}
begin = time.perf_counter()
with open_checkpoint(source) as checkpoint:
    compress(checkpoint, RECIPES[fmt], Path(source) / "small", max_shard=int(shard))
seconds = time.perf_counter() - begin
peak = next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(seconds, int(peak) * 1024)
"""


@dataclass(frozen=True)
class Cost:
    """``peak``: bytes resident at most, the interpreter and its libraries among them."""

    seconds: float
    peak: int


def measure(matrices: int, fmt: str, max_shard: int) -> Cost:
    """Compresses a model of so many matrices into shards of at most ``max_shard`` bytes."""
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), matrices)
        command = [sys.executable, "-c", CHILD, folder, fmt, str(max_shard)]
        seconds, peak = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return Cost(float(seconds), int(peak))


def write_model(folder: Path, matrices: int) -> None:
    """The same random matrix over and over, in one file."""
    values = (np.random.default_rng(0).standard_normal((ROWS, COLS), np.float32) * 0.02).astype(ml_dtypes.bfloat16)
    data, size = values.tobytes(), values.nbytes
    header = {
        f"model.layers.{i}.mlp.up_proj.weight": {
            "dtype": "BF16",
            "shape": [ROWS, COLS],
            "data_offsets": [i * size, (i + 1) * size],
        }
        for i in range(matrices)
    }
    head = json.dumps(header).encode()
    (folder / "config.json").write_text("{}")
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for _ in range(matrices):
            file.write(data)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=1500)
    parser.add_argument("--format", choices=("int4", "fp8", "codebook4", "codebook3"), default="int4")
    parser.add_argument("--max-shard-megabytes", type=int, default=256)
    asked = parser.parse_args(arguments)
    matrices = max(1, round(asked.megabytes * 1e6 / (2 * ROWS * COLS)))
    cost = measure(matrices, asked.format, int(asked.max_shard_megabytes * 1e6))
    weights = matrices * ROWS * COLS
    print(
        f"{asked.format}: {2 * weights / 1e6:.0f} MB in {cost.seconds:.1f} s"
        f" ({weights / cost.seconds / 1e6:.0f} million weights a second), at most {cost.peak / 1e6:.0f} MB resident"
    )


if __name__ == "__main__":
    main()
