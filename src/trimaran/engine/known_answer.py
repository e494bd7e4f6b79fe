"""Where the canary's answer is kept from one start to the next.

Logits are the same bit for bit where the model's bytes, formats, instruction set and code are, and rotary tables, which
come from NumPy; that also looks at the processor. All this names the file, so that whatever it holds must be found
again. Only models that were verified have one: without that, the digest says too little of the weights.
"""

import hashlib
import logging
import os
import re

import numpy as np

from trimaran.base.processor import cpu_name
from trimaran.checkpoint.environment import home
from trimaran.kernels.native_core import build_digest

log = logging.getLogger(__name__)

_ANSWER = re.compile(r"[0-9a-f]{64}\n")


class KnownAnswer:
    """The file of one configuration, ``canaries/<digest>`` in the cache."""

    def __init__(self, identity: bytes) -> None:
        """``identity`` says what cached pages mean (``prefix.py``): it covers model, formats and instruction set."""
        sha = hashlib.sha256()
        for part in (identity, build_digest(), np.__version__.encode(), cpu_name().encode()):
            sha.update(len(part).to_bytes(8, "little") + part)
        self.path = home() / "canaries" / sha.hexdigest()

    def read(self) -> str | None:
        """The digest in the file; None when there is none, or no digest in it."""
        try:
            text = self.path.read_text()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            log.warning("cannot read the canary's known answer: %s", error)
            return None
        if not _ANSWER.fullmatch(text):
            log.warning("%s holds no answer of a canary; it is written anew", self.path)
            return None
        return text.strip()

    def write(self, answer: str) -> None:
        """Keeps ``answer``, whole or not at all; a cache that cannot be written to is no error."""
        half = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            half.write_text(answer + "\n")
            half.replace(self.path)
        except OSError as error:
            log.warning("the canary's answer is not kept for later starts: %s", error)
