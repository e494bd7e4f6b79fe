"""Distance of Trimaran's executors from an independent float32 forward, on three texts.

    python bench/parity.py smollm2                     all configurations
    python bench/parity.py gemma3-270m                 another model, the texts one after the other: its window passes
    python bench/parity.py smollm2 --only auto --check one of them; exit status 1 when a bar is missed
    python bench/parity.py smollm2 --full              also the KL over the whole vocabulary (needs `make goldens`)

KL is KL(golden || ours) in nats: exact over golden's 128 most likely tokens, estimated from 32 draws over the others. A
disagreement counts wherever the arg-max differs; its margin says how close golden's own first two were.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np

from trimaran.base.errors import TrimaranError
from trimaran.bench.goldens import Golden, Score, load_goldens
from trimaran.bench.parity import CONFIGURATIONS, Result, measure
from trimaran.checkpoint import open_checkpoint
from trimaran.checkpoint.sources import resolve
from trimaran.evaluate.measures import Float32
from trimaran.models.registry import read_config

ROOT = Path(__file__).resolve().parent.parent
GOLDENS = {"llama": "smollm2", "gemma3_text": "gemma3-270m"}  # by family: the model that has golden logits
HEADER = "config        text     tokens    mean KL    max KL    full KL    top-1   golden     ours   ratio"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "model", help="catalogue name or path of SmolLM2-135M-Instruct or Gemma-3-270M, which have goldens"
    )
    parser.add_argument("--only", action="append", choices=CONFIGURATIONS, help="measure this one (may be repeated)")
    parser.add_argument("--threads", type=int, default=0, help="0: one per core")
    parser.add_argument("--check", action="store_true", help="exit with status 1 when a bar is missed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures to FILE")
    parser.add_argument(
        "--full",
        type=Path,
        nargs="?",
        const=ROOT / ".venv-goldens" / "full",
        metavar="FOLDER",
        help="whole golden logits, as `make goldens` leaves them",
    )
    options = parser.parse_args(arguments)
    checkpoint = open_checkpoint(resolve(options.model).path)
    family = read_config(checkpoint).family
    if family not in GOLDENS:
        raise SystemExit(f"parity: there are no golden logits for the family {family}")
    goldens = load_goldens(ROOT / "tests" / "data" / "goldens", GOLDENS[family])
    full = None if options.full is None else load_full(options.full, goldens)
    print(HEADER)
    results = []
    for name in options.only or CONFIGURATIONS:
        result = measure(checkpoint, goldens, CONFIGURATIONS[name], full, options.threads)
        show(result)
        results.append(result)
    checkpoint.close()
    if options.json:
        options.json.write_text(json.dumps([asdict(each) | {"misses": each.misses()} for each in results], indent=2))
    missed = any(each.misses() for each in results)
    return 1 if missed and options.check else 0


def load_full(folder: Path, goldens: list[Golden]) -> dict[str, Float32]:
    """The golden logits ``[N, vocab]`` of each text, mapped rather than read."""
    try:
        return {each.name: np.load(folder / f"{each.name}.npy", mmap_mode="r") for each in goldens}
    except FileNotFoundError as error:
        raise SystemExit(f"{error.filename} is missing; `make goldens` writes it") from error


def show(result: Result) -> None:
    for each in [*result.scores, result.mean]:
        print(line(result.configuration.name, each))
    if margins := [margin for _, margin in result.mean.disagreements]:
        print(
            f"{'':14}other arg-max at {len(margins)}, where golden's first two are up to {max(margins):.4f} nats apart"
        )
    for miss in result.misses():
        print(f"{'':14}MISSED: {miss}")
    sys.stdout.flush()


def line(configuration: str, score: Score) -> str:
    full = "-" if score.full_kl is None else f"{score.full_kl:.2e}"
    return (
        f"{configuration:14}{score.name:8}{score.tokens:7}{score.mean_kl:11.2e}{score.max_kl:10.1e}{full:>11}"
        f"{score.agreement:9.2%}{score.golden_perplexity:9.3f}{score.perplexity:9.3f}{score.perplexity_ratio:8.4f}"
    )


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TrimaranError as error:
        sys.exit(f"parity: {error}")
