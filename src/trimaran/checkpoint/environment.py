"""Every environment variable that model sources look at.

================================================  ====================================================================
``TRIMARAN_HOME``                                 the cache; default ``$XDG_CACHE_HOME/trimaran``, ``~/.cache/trimaran``
``TRIMARAN_OFFLINE``, ``HF_HUB_OFFLINE``          1: open no socket
``TRIMARAN_CONNECTIONS``                          connections that a download uses at once, 1 to 64; default 8
``TRIMARAN_PACKED_CACHE_BYTES``                   most that packed weights may take of the disk, such as 20G; 0: none
``SSL_CERT_FILE``, ``PIP_CERT``,                  certificates to trust instead of the built-in ones; the first one set
``REQUESTS_CA_BUNDLE``                            is used
``HF_ENDPOINT``, ``HF_TOKEN``                     the model hub, and the token to show it
``PIP_INDEX_URL``, ``PIP_CONFIG_FILE``            the package index, as pip reads them
================================================  ====================================================================

Proxies (``HTTPS_PROXY``, ``NO_PROXY``, …) are read by httpx.
"""

import os
from pathlib import Path

from trimaran.base.config import parse_size
from trimaran.base.errors import ConfigError

PACKED_CACHE_BYTES = 64 << 30
CONNECTIONS, MOST_CONNECTIONS = 8, 64
_OFFLINE = ("TRIMARAN_OFFLINE", "HF_HUB_OFFLINE")
_CERTIFICATES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE")
_YES, _NO = frozenset({"1", "true", "yes", "on"}), frozenset({"", "0", "false", "no", "off"})


def home() -> Path:
    """The directory of downloaded models."""
    if chosen := os.environ.get("TRIMARAN_HOME"):
        return Path(chosen).expanduser().absolute()
    cache = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(cache) if Path(cache).is_absolute() else Path.home() / ".cache"  # the XDG rules ignore relative ones
    return base / "trimaran"


def offline_variable() -> str | None:
    """The variable that forbids the network, if one is set."""
    for name in _OFFLINE:
        value = os.environ.get(name, "").lower()
        if value in _YES:
            return name
        if value not in _NO:
            raise ConfigError(f"{name} is {value!r}; use 1 or 0")
    return None


def connections() -> int:
    """Connections that a download uses at once."""
    text = os.environ.get("TRIMARAN_CONNECTIONS") or str(CONNECTIONS)
    if not text.isdecimal() or not 1 <= int(text) <= MOST_CONNECTIONS:
        raise ConfigError(f"TRIMARAN_CONNECTIONS is {text!r}; use a number from 1 to {MOST_CONNECTIONS}")
    return int(text)


def packed_cache_bytes() -> int:
    """The most that packed weights may take of the disk; 0: none are kept."""
    text = os.environ.get("TRIMARAN_PACKED_CACHE_BYTES") or str(PACKED_CACHE_BYTES)
    size = parse_size(text)
    if size is None or size < 0:
        raise ConfigError(f"TRIMARAN_PACKED_CACHE_BYTES is {text!r}; use a number of bytes such as 20G, or 0")
    return size


def certificates() -> Path | None:
    """A file or directory of CA certificates to trust, or None for the built-in ones."""
    for name in _CERTIFICATES:
        if value := os.environ.get(name):
            path = Path(value).expanduser()
            if not path.exists():
                raise ConfigError(f"{name} names {value}, which does not exist")
            return path
    return None


def hub_endpoint() -> str:
    """Base URL of the model hub, without a slash at its end."""
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def hub_token() -> str | None:
    return os.environ.get("HF_TOKEN") or None
