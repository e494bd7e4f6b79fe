"""What a run of the canary costs an engine: alone, and beside sequences that decode.

python bench/canary.py smollm2
"""

import argparse
import statistics
import sys
import time

from trimaran.base.errors import TrimaranError
from trimaran.base.messages import Submit
from trimaran.base.sampling import SamplingParams
from trimaran.checkpoint.sources import resolve
from trimaran.engine.canary import Canary
from trimaran.engine.config import EngineConfig
from trimaran.engine.engine import Engine
from trimaran.engine.load import load_engine

BESIDE = (0, 1, 32)
SOON = 1e-9  # seconds: a run whenever it is asked for
CONTEXT = 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="catalogue name or path")
    parser.add_argument("--runs", type=int, default=20)
    arguments = parser.parse_args()
    path = str(resolve(arguments.model).path)
    print(f"{'sequences beside it':>20}{'a step, ms':>14}{'steps of a run, ms':>22}{'more than without, ms':>24}")
    engine = load_engine(EngineConfig(model=path, canary_interval=SOON, max_num_seqs=64, max_model_len=CONTEXT))
    for beside in BESIDE:
        for number in range(beside):
            sampling = SamplingParams(temperature=0.0, max_tokens=CONTEXT - 32, ignore_eos=True)
            engine.submit(Submit(str(number), [3 + number] * 16, sampling))
        canary = Canary(engine, engine.info.canary, SOON)
        plain, checks, more = [], [], []
        for _ in range(arguments.runs):
            plain.append(statistics.median(_step(engine, None) for _ in range(3)))
            steps, before = [], canary.checks
            while canary.checks == before:
                steps.append(_step(engine, canary))
            checks.append(sum(steps))
            more.append(sum(steps) - len(steps) * plain[-1])
        assert canary.deviations == 0
        row = [1000 * statistics.median(each) for each in (plain, checks, more)]
        print(f"{beside:20}{row[0]:14.2f}{row[1]:22.2f}{row[2]:24.2f}")
        engine.cancel_all()
        engine.step()
    engine.close()
    return 0


def _step(engine: Engine, canary: Canary | None) -> float:
    """Seconds of a turn of the worker's loop; without ``canary`` it does not run."""
    began = time.perf_counter()
    if canary is None:
        engine.step()
    else:
        canary.turn(time.monotonic())
        canary.sift(engine.step())
    return time.perf_counter() - began


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TrimaranError as error:
        sys.exit(f"canary: {error}")
