"""An engine worker that finds another answer than an earlier start: ``python -m tests.server.doubtful_worker``."""

import sys

from trimaran.base.errors import CanaryError
from trimaran.engine import worker


def load_in_doubt(*_):
    raise CanaryError("the canary's logits are others than an earlier start found")


if __name__ == "__main__":
    worker.load_any = load_in_doubt
    sys.exit(worker.main())
