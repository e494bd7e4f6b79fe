from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from trimaran.checkpoint import patience
from trimaran.checkpoint.http_client import open_client

from .fake_web import FakeWeb, serve

_VARIABLES = (
    "TRIMARAN_OFFLINE", "HF_HUB_OFFLINE", "HF_ENDPOINT", "HF_TOKEN", "PIP_INDEX_URL", "PIP_CONFIG_FILE",
    "XDG_CACHE_HOME", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy",
)  # fmt: skip


@pytest.fixture
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and an environment that says nothing else."""
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
    home = tmp_path / "home"
    monkeypatch.setenv("TRIMARAN_HOME", str(home))
    return home


@pytest.fixture
def web(cache_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeWeb]:
    """A web server, and no patience to wait for it."""
    monkeypatch.setattr(patience, "FIRST_PAUSE", 0.001)
    with serve() as server:
        yield server


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    with open_client() as client:
        yield client


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """Where a download goes: alone in its folder."""
    folder = tmp_path / "target"
    folder.mkdir()
    return folder / "file"
