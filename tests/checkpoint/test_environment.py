from pathlib import Path

import pytest

from trimaran.base.errors import ConfigError
from trimaran.checkpoint import environment
from trimaran.checkpoint.http_client import open_client


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("TRIMARAN_HOME", "XDG_CACHE_HOME", "SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert environment.home() == tmp_path / ".cache" / "trimaran"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert environment.home() == tmp_path / ".cache" / "trimaran"
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert environment.home() == Path("/xdg/trimaran")
    monkeypatch.setenv("TRIMARAN_HOME", "~/models")
    assert environment.home() == tmp_path / "models"


def test_certificates_are_the_first_that_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert environment.certificates() is None
    for name in ("REQUESTS_CA_BUNDLE", "PIP_CERT", "SSL_CERT_FILE"):
        path = tmp_path / name
        path.write_text("")
        monkeypatch.setenv(name, str(path))
        assert environment.certificates() == path
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "absent"))
    with pytest.raises(ConfigError, match=r"SSL_CERT_FILE names .*absent, which does not exist"):
        environment.certificates()


def test_certificates_that_are_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    monkeypatch.setenv("PIP_CERT", str(tmp_path / "ca.pem"))
    with pytest.raises(ConfigError, match=r"cannot read certificates from .*ca\.pem"):
        open_client()


def test_the_hub_can_be_another(monkeypatch: pytest.MonkeyPatch) -> None:
    assert environment.hub_endpoint() == "https://huggingface.co"
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.example/")
    assert environment.hub_endpoint() == "https://mirror.example"


@pytest.mark.parametrize(("value", "set_"), [("1", True), ("True", True), ("0", False), ("", False)])
def test_offline(monkeypatch: pytest.MonkeyPatch, value: str, set_: bool) -> None:
    monkeypatch.delenv("TRIMARAN_OFFLINE", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", value)
    assert environment.offline_variable() == ("HF_HUB_OFFLINE" if set_ else None)


def test_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRIMARAN_CONNECTIONS", raising=False)
    assert environment.connections() == 8
    monkeypatch.setenv("TRIMARAN_CONNECTIONS", "3")
    assert environment.connections() == 3
    for wrong in ("0", "65", "-1", "many"):
        monkeypatch.setenv("TRIMARAN_CONNECTIONS", wrong)
        with pytest.raises(ConfigError, match="number from 1 to 64"):
            environment.connections()
