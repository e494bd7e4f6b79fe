import os
from pathlib import Path

import pytest

from trimaran.base.errors import ConfigError
from trimaran.checkpoint import package_index
from trimaran.checkpoint.package_index import index_url


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's pip configuration, and no other."""
    for name in ("PIP_INDEX_URL", "PIP_CONFIG_FILE", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(tmp_path / "system"))
    monkeypatch.setattr(package_index.sys, "prefix", str(tmp_path / "venv"))
    path = tmp_path / ".config" / "pip" / "pip.conf"
    path.parent.mkdir(parents=True)
    return path


def test_the_environment_comes_first(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text("[global]\nindex-url = https://mirror.example/simple\n")
    assert index_url() == "https://mirror.example/simple/"
    monkeypatch.setenv("PIP_INDEX_URL", "https://other.example/simple/")
    assert index_url() == "https://other.example/simple/"


def test_a_section_for_downloads_comes_before_the_global_one(config: Path) -> None:
    config.write_text("[global]\nindex-url = https://a.example\n[download]\nindex-url = https://b.example\n")
    assert index_url() == "https://b.example/"


def test_the_virtual_environment_comes_before_the_user(config: Path, tmp_path: Path) -> None:
    config.write_text("[global]\nindex-url = https://user.example\n")
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "pip.conf").write_text("[global]\nindex-url = https://venv.example\n")
    assert index_url() == "https://venv.example/"


def test_a_named_file_comes_before_all_others(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text("[global]\nindex-url = https://user.example\n")
    (tmp_path / "named.conf").write_text("[global]\nindex-url = https://named.example\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "named.conf"))
    assert index_url() == "https://named.example/"


def test_without_configuration_it_is_pip_s_own(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text("[global]\nindex-url = https://user.example\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)  # pip's way to say: read no file
    monkeypatch.setattr(package_index, "_built_in", lambda: "https://built-in.example/simple")
    assert index_url() == "https://built-in.example/simple/"
    monkeypatch.setattr(package_index, "_built_in", lambda: None)
    with pytest.raises(ConfigError, match="set PIP_INDEX_URL"):
        index_url()


def test_pip_has_one_built_in() -> None:
    url = package_index._built_in()
    assert url is not None
    assert url.startswith("https://")


def test_a_broken_file_is_named(config: Path) -> None:
    config.write_text("index-url = https://user.example\n")
    with pytest.raises(ConfigError, match=r"pip's configuration .*pip\.conf"):
        index_url()
