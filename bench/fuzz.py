"""Damages requests, model files, chat templates and manifests at random: typed errors only, no crash, no hang, no 500.

    python bench/fuzz.py --minutes 10                 half of it over requests, half over files
    python bench/fuzz.py --only readers --minutes 5
    python bench/fuzz.py --only requests --seed 7 --cases 1000
    python bench/fuzz.py --only readers --seed 7 --first 123 --cases 1 --keep DIR      one case again

Cases are drawn from the seed, which is printed. Files are read in a process of their own, to the first token of the
tiny model that they hold, with 1 GiB of memory; requests go to `trimaran serve` with the null executor. Exit status 1
when anything was found.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import SystemRandom

from trimaran.base.errors import TrimaranError
from trimaran.bench.fuzz.bodies import fuzz_bodies
from trimaran.bench.fuzz.model_samples import write_folder
from trimaran.bench.fuzz.readers import fuzz_readers
from trimaran.bench.fuzz.tally import Tally, times, until

CORPUS = Path(__file__).resolve().parents[1] / "tests" / "data"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("readers", "requests"))
    parser.add_argument("--minutes", type=float, default=1, help="in all")
    parser.add_argument("--cases", type=int, help="as many of each instead")
    parser.add_argument("--seed", type=int, help="default: a random one")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep files in which something was found")
    options = parser.parse_args(arguments)
    seed = SystemRandom().randrange(10**6) if options.seed is None else options.seed
    parts = [options.only] if options.only else ["readers", "requests"]
    print(f"seed {seed}", flush=True)

    def more() -> Callable[[], bool]:
        return times(options.cases) if options.cases else until(60 * options.minutes / len(parts))

    tally, began = Tally(), time.monotonic()
    if options.keep:
        options.keep.mkdir(exist_ok=True, parents=True)
    with tempfile.TemporaryDirectory() as folder:
        if "readers" in parts:
            fuzz_readers(seed, Path(folder), tally, more(), keep=options.keep, corpus=CORPUS, first=options.first)
        if "requests" in parts:
            model = Path(folder) / "tiny"
            model.mkdir()
            asyncio.run(fuzz_bodies(seed, str(write_folder(model)), tally, more(), first=options.first))
    for (kind, outcome), count in sorted(tally.counts.items()):
        print(f"{kind:10}{outcome:10}{count:9,}")
    for kind, (seconds, case) in sorted(tally.slowest.items()):
        print(f"{kind:10}slowest   {seconds:9.1f} s (case {case})")
    print(f"{tally.cases:,} cases in {time.monotonic() - began:.0f} s, {len(tally.findings)} findings")
    return 1 if tally.findings else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TrimaranError as error:
        sys.exit(f"fuzz: {error}")
