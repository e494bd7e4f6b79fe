"""An engine worker of which every process has another model: ``python -m tests.server.changing_worker``."""

import os
import sys

from msgspec import structs

from trimaran.engine import worker

load = worker.load_any


def load_another(*arguments):
    engine = load(*arguments)
    engine.info = structs.replace(engine.info, digest=str(os.getpid()))
    return engine


if __name__ == "__main__":
    worker.load_any = load_another
    sys.exit(worker.main())
