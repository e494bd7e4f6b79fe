"""Injects page faults into a live engine under load and counts what became of them.

    python bench/page_faults.py --faults 10000            real pages without a model (the null executor)
    python bench/page_faults.py --faults 500 smollm2      the real model, native executor

Exit status 1 when a fault was missed, a request got a token that is not its own, or one was ended for nothing.
"""

import argparse
import sys
import time
from typing import Any

from trimaran.base.errors import TrimaranError
from trimaran.base.formats import KVFormat
from trimaran.bench.fault_campaign import Campaign, Tally, lone_tokens
from trimaran.checkpoint.sources import resolve
from trimaran.engine.config import EngineConfig
from trimaran.engine.engine import Engine
from trimaran.engine.load import load_engine
from trimaran.kernels.null import NullModel

PER_ENGINE = 200  # faults, then a new engine: quarantined pages do not come back
CONTEXT, PAGES = 256, 600
ROWS = 64  # of a step, which many prompts exceed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="catalogue name or path; none: the null executor")
    parser.add_argument("--faults", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    path = None if arguments.model is None else str(resolve(arguments.model).path)
    total, began, number = Tally(), time.perf_counter(), 0
    while total.injected.total() < arguments.faults:
        engine = open_engine(path)
        lone = open_engine(path)
        faults = min(PER_ENGINE, arguments.faults - total.injected.total())
        campaign = Campaign(engine, lone_tokens(lone), engine.info.vocab, seed=arguments.seed + number)
        total.add(campaign.run(faults))
        engine.close()
        lone.close()
        number += 1
    for kind, count in sorted(total.injected.items()):
        print(f"{kind:40}{count:8,}")
    print(
        f"\n{total.injected.total():,} faults in {time.perf_counter() - began:.0f} s, {total.requests:,} requests\n"
        f"sequences ended, and copies refused, before a page was used that is not theirs: {total.detected:,}\n"
        f"touched, but over or computed anew before anything was used: {total.harmless:,}\n"
        f"missed: {total.missed:,}; requests with a wrong token: {total.wrong:,}\n"
        f"false alarms: {total.false_alarms:,} in {total.checked:,} page checks\n"
        f"leases on pages of running requests: {total.leases:,}; copies refused for nothing: {total.refused:,}\n"
        f"pages quarantined: {total.quarantined:,}; all others free or cached again"
    )
    return 0 if total.clean else 1


def open_engine(path: str | None) -> Engine:
    """An engine with few enough pages for preemptions, that runs the plain loop."""
    if path is None:
        model = NullModel(context=CONTEXT)
        [group] = model.program().groups
        memory = PAGES * group.page_bytes(KVFormat.BF16, 16)
        options: dict[str, Any] = {"executor": "null", "null": model, "kv_memory_bytes": memory}
    else:
        options = {"model": path, "max_model_len": CONTEXT, "max_num_seqs": 16}
    return load_engine(EngineConfig(max_num_batched_tokens=ROWS, overlap=False, **options))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TrimaranError as error:
        sys.exit(f"page_faults: {error}")
