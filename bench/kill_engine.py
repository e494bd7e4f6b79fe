"""Kills the engine under load with SIGKILL: every stream ends with a typed error, the server recovers, nothing is left.

    python bench/kill_engine.py smollm2 --kills 50                             32 streams, one kill after the other
    python bench/kill_engine.py smollm2 --serve-flags "--executor null"        without the model's arithmetic

Exit status 1 when a stream ended otherwise, the server did not come back, or it holds other pages, descriptors,
threads, processes or shared memory than before.
"""

import argparse
import asyncio
import shlex
import sys
import time

from trimaran.base.errors import TrimaranError
from trimaran.bench.kill_campaign import kill_engines


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="catalogue name or path")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--streams", type=int, default=32, help="at once")
    parser.add_argument("--seed", type=int, default=0, help="draws the pauses between kills")
    parser.add_argument("--serve-flags", type=shlex.split, default=[], metavar="FLAGS", help="for `trimaran serve`")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    campaign = asyncio.run(
        kill_engines(options.model, options.kills, options.streams, options.seed, options.serve_flags)
    )
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
