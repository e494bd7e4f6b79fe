"""Every ``TRIMARAN_*`` environment variable there is, in one place.

``HOME``, ``OFFLINE``, ``CONNECTIONS`` and ``PACKED_CACHE_BYTES`` are read by ``checkpoint/environment.py``, ``ISA``
and ``PROFILE`` by the native executor. Beside these, each option of a command can be set as ``TRIMARAN_<OPTION>``
(``base/config.py``): ``TRIMARAN_PORT=9000`` is ``--port 9000``. A ``TRIMARAN_*`` name that is neither is an error, so
that a typing mistake never goes unnoticed.
"""

from collections.abc import Iterable, Mapping

from trimaran.base.errors import ConfigError

PREFIX = "TRIMARAN_"

VARIABLES: dict[str, str] = {
    "TRIMARAN_HOME": "where models are kept; default: trimaran/ under the XDG cache",
    "TRIMARAN_OFFLINE": "true: open no socket to fetch a model",
    "TRIMARAN_CONNECTIONS": "how many connections a download uses at once; default 8",
    "TRIMARAN_PACKED_CACHE_BYTES": "the most that packed weights may take of the disk; 0: none; default 64G",
    "TRIMARAN_ISA": "generic, avx2, avx_vnni or avx512: instruction set of the native executor; default: the best",
    "TRIMARAN_POOL_KEY": "what the workers of pools know each other by; default: a new key at every start",
    "TRIMARAN_PROFILE": "true: the native executor times every op and prints a table to stderr when it closes",
}


def truth(name: str, value: str) -> bool:
    """Reads ``true``/``false``, ``1``/``0``, ``yes``/``no``, ``on``/``off``, in any case; raises ``ConfigError``."""
    lowered = value.strip().lower()
    if lowered in ("true", "1", "yes", "on"):
        return True
    if lowered in ("false", "0", "no", "off"):
        return False
    raise ConfigError(f"{name}={value!r}: expected true or false")


def option_variable(option: str) -> str:
    """The variable that sets ``option``: ``max_model_len`` is ``TRIMARAN_MAX_MODEL_LEN``."""
    return PREFIX + option.upper()


def check_names(environ: Mapping[str, str], options: Iterable[str]) -> None:
    """Raises ``ConfigError`` on a ``TRIMARAN_*`` variable that nothing reads, naming the nearest one that exists."""
    known = [*VARIABLES, *map(option_variable, options)]
    for name in environ:
        if name.startswith(PREFIX) and name not in known:
            raise ConfigError(f"nothing reads the environment variable {name}{nearest(name, known)}")


def nearest(name: str, known: Iterable[str]) -> str:
    """``; did you mean X?`` for the closest of ``known``, or an empty string when none is close."""
    from difflib import get_close_matches  # for those who mistyped only

    close = get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
