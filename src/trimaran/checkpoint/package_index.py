"""Which package index to ask: the one that pip on this machine would ask.

Order, as in pip: ``PIP_INDEX_URL``; ``index-url`` (sections ``download`` and ``global``) in the file that
``PIP_CONFIG_FILE`` names, and in the configuration of the environment, the user and the system; what pip has built in.
"""

import configparser
import os
import sys
from pathlib import Path

from trimaran.base.errors import ConfigError


def index_url() -> str:
    """Base URL of the index, with a slash at its end; raises ``ConfigError`` when none is known."""
    url = os.environ.get("PIP_INDEX_URL") or _configured() or _built_in()
    if url is None:
        raise ConfigError("no package index is known: set PIP_INDEX_URL to its address, or install pip")
    return url.strip().rstrip("/") + "/"


def _configured() -> str | None:
    for path in _files():
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, encoding="utf-8")  # a file that does not exist is passed over
        except (OSError, UnicodeDecodeError, configparser.Error) as error:
            raise ConfigError(f"cannot read pip's configuration {path}: {error}") from error
        for section in ("download", "global"):
            if url := parser.get(section, "index-url", fallback=""):
                return url
    return None


def _files() -> list[Path]:
    """Configuration files, the most specific one first."""
    chosen = os.environ.get("PIP_CONFIG_FILE")
    if chosen == os.devnull:
        return []
    user = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    files = [Path(sys.prefix) / "pip.conf", user / "pip" / "pip.conf", Path.home() / ".pip" / "pip.conf"]
    system = [Path(folder) / "pip" / "pip.conf" for folder in os.environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":")]
    return [*([Path(chosen)] if chosen else []), *files, *system, Path("/etc/pip.conf")]


def _built_in() -> str | None:
    try:
        from pip._internal.models.index import PyPI
    except ImportError:
        return None
    return str(PyPI.simple_url)
