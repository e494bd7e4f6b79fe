"""An engine worker whose memory goes bad while it serves: ``python -m tests.server.aging_worker``.

The null executor's weights are the factors of its hash. One of them changes once the canary has run twice.
"""

import sys

import numpy as np

from trimaran.engine import worker
from trimaran.engine.canary import Canary

GOOD_RUNS = 2


class Aging(Canary):
    good = True

    def turn(self, now: float) -> None:
        if self.good and self.checks == GOOD_RUNS:
            self.good = False
            self._engine.executor._factors[0][3] ^= np.uint64(8)
        super().turn(now)


if __name__ == "__main__":
    worker.Canary = Aging
    sys.exit(worker.main())
