"""Kills the engine under load with SIGKILL: every stream ends with a typed error, the server recovers, nothing is left.

    python bench/kill_engine.py smollm2      50 kills, one after the other, under 32 streams
    python bench/kill_engine.py              without a model: the null executor

Exit status 1 when a stream ended otherwise, the server did not come back, or it holds other pages, descriptors,
threads, processes or shared memory than before.
"""

import argparse
import asyncio
import shlex
import sys
import tempfile
import time
from pathlib import Path

from trimaran.base.errors import TrimaranError
from trimaran.bench.fuzz.model_samples import write_folder
from trimaran.bench.kill_campaign import kill_engines


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="catalogue name or path; none: the null executor")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--streams", type=int, default=32, help="at once")
    parser.add_argument("--seed", type=int, default=0, help="draws the pauses between kills")
    parser.add_argument("--serve-flags", type=shlex.split, default=[], metavar="FLAGS", help="for `trimaran serve`")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        flags = options.serve_flags if options.model else ["--executor", "null", *options.serve_flags]
        model = options.model or str(write_folder(Path(folder)))
        campaign = asyncio.run(kill_engines(model, options.kills, options.streams, options.seed, flags))
    seconds = sorted(campaign.recoveries)
    print(f"{campaign.kills} kills in {time.monotonic() - began:.0f} s, {campaign.streams.total():,} streams:")
    for ended, count in sorted(campaign.streams.items()):
        print(f"  {ended:36}{count:8,}")
    if seconds:
        print(f"ready again after {seconds[len(seconds) // 2]:.1f} s (median), {seconds[-1]:.1f} s (most)")
    print(f"before {campaign.before}\nafter  {campaign.after}")
    for failure in campaign.failures[:20]:
        print(f"FAILED: {failure}")
    print("kill_engine: " + (f"{len(campaign.failures)} failures" if campaign.failures else "all well"))
    return 1 if campaign.failures else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TrimaranError as error:
        sys.exit(f"kill_engine: {error}")
