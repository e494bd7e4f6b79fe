"""The compiled core, for the modules of the CPU executor; importing it says why there is none."""

from trimaran.base.errors import UnsupportedError

try:
    from trimaran import _native as _native
except ImportError as error:  # installed without its compiled part
    raise UnsupportedError(f"the native executor was not built ({error}); use the executor 'reference'") from error
