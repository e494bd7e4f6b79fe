"""The compiled core, for the modules of the CPU executor; importing it says why there is none."""

import hashlib
from functools import cache
from pathlib import Path

from trimaran.base.errors import UnsupportedError

try:
    from trimaran import _native as _native
except ImportError as error:  # installed without its compiled part
    raise UnsupportedError(f"the native executor was not built ({error}); use the executor 'reference'") from error


@cache
def build_digest() -> bytes:
    """SHA-256 of the compiled core: what it computes and packs may differ from what any other build does."""
    return hashlib.sha256(Path(_native.__file__).read_bytes()).digest()
