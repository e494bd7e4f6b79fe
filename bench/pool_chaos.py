"""Faults between a prefill and a decode pool: nobody gets a wrong token, every request ends, all pages come back.

    python bench/pool_chaos.py --requests 500                      four fifths in one process, a fifth over HTTP
    python bench/pool_chaos.py --requests 100 --serve-flags ""     over HTTP with the model's own arithmetic

In one process: frames dropped, sent twice, out of order, altered, misplaced, meant for an earlier process, or of
nonsense; stale, altered and wrong tickets; cancels on either side; a receiver that restarts on the same address; pages
that another request takes.
Over HTTP: workers killed at any moment, clients that leave, prompts that are too long, each among other requests; texts
are held to those of one engine. Exit status 1 when anything is not as it must be.
"""

import argparse
import asyncio
import shlex
import sys
import time

from trimaran.base.errors import TrimaranError
from trimaran.bench import pool_campaign, pool_faults


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2", help="catalogue name or path, over HTTP")
    parser.add_argument("--requests", type=int, default=500, help="with a fault each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--serve-flags", type=shlex.split, default=["--executor", "null"], metavar="FLAGS", help="for `trimaran serve`"
    )
    options = parser.parse_args(arguments)
    began = time.monotonic()
    http = options.requests // 5
    inside = pool_faults.Campaign(options.seed).run(options.requests - http)
    print(inside.to_text(), flush=True)
    outside = asyncio.run(pool_campaign.Campaign(options.model, options.serve_flags, options.seed).run(http))
    print(outside.to_text())
    wrong = inside.wrong + outside.wrong
    for failure in wrong[:20]:
        print(f"FAILED: {failure}")
    print(f"pool_chaos: {f'{len(wrong)} failures' if wrong else 'all well'}, {time.monotonic() - began:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TrimaranError as error:
        sys.exit(f"pool_chaos: {error}")
