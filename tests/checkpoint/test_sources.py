import hashlib
import socket
import threading
from pathlib import Path
from typing import Any, NoReturn

import pytest

from trimaran.base.errors import ConfigError, OfflineError, SourceError
from trimaran.base.formats import KVFormat, WeightFormat
from trimaran.checkpoint import cache
from trimaran.checkpoint.catalog import CatalogEntry, Precision, load_catalog
from trimaran.checkpoint.sources import LocalModel, cached, resolve

from .fake_web import FakeWeb, Page

MODEL = b"GGUF and so on"
SHA = hashlib.sha256(MODEL).hexdigest()


@pytest.fixture
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails whatever opens a socket or asks for an address."""

    def refuse(*args: Any, **options: Any) -> NoReturn:
        pytest.fail("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def put(source: str, name: str = "m.gguf") -> Path:
    """Fills the cache as a pull of ``source`` would."""
    directory = cache.staging(source)
    (directory / name).write_bytes(MODEL)
    return cache.publish(directory, source, [cache.FileRecord(name, SHA, len(MODEL))], main=name).path


def test_an_address_is_pulled_once(web: FakeWeb, cache_home: Path) -> None:
    web.pages["/a/m.gguf"] = Page(MODEL)
    source = f"{web.url}/a/m.gguf"
    first, second = resolve(source), resolve(source)
    assert first == second
    assert first.name == "m"
    assert first.path.read_bytes() == MODEL
    assert first.path.is_relative_to(cache_home)
    assert len(web.requests) == 1


def test_the_hash_in_an_address_is_checked(web: FakeWeb) -> None:
    web.pages["/m.gguf"] = Page(MODEL)
    assert resolve(f"{web.url}/m.gguf#sha256={SHA}").path.read_bytes() == MODEL
    with pytest.raises(SourceError, match=f"SHA-256 {SHA}, expected {'0' * 64}"):
        resolve(f"{web.url}/m.gguf#sha256={'0' * 64}")


def test_a_damaged_model_in_the_cache_is_pulled_again(web: FakeWeb) -> None:
    web.pages["/m.gguf"] = Page(MODEL)
    source = f"{web.url}/m.gguf"
    path = resolve(source).path
    path.write_bytes(MODEL[:3])
    assert cached(source) is None
    assert resolve(source).path.read_bytes() == MODEL


def test_two_pulls_at_once_download_once(web: FakeWeb) -> None:
    web.pages["/m.gguf"] = Page(MODEL * 10000)
    found: list[LocalModel] = []
    threads = [threading.Thread(target=lambda: found.append(resolve(f"{web.url}/m.gguf"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(found)) == 1
    assert len(web.requests) == 1


@pytest.mark.usefixtures("no_sockets")
@pytest.mark.parametrize("model", ["smollm2", "hf:org/m", "https://example.com/m.gguf", "pypi:p==1#m.gguf"])
def test_offline_opens_no_socket(cache_home: Path, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        OfflineError, match=f"{model} is not in the cache .*offline was asked for.*trimaran pull {model}"
    ):
        resolve(model, offline=True)
    for variable in ("TRIMARAN_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(variable, "1")
        with pytest.raises(OfflineError, match=variable):
            resolve(model)
        monkeypatch.delenv(variable)


@pytest.mark.usefixtures("no_sockets")
def test_what_is_in_the_cache_needs_no_network(cache_home: Path) -> None:
    path = put("hf:org/m@v1#m.gguf")
    for offline in (True, False):
        assert resolve("hf:org/m@v1#m.gguf", offline=offline) == LocalModel("m", path)


@pytest.mark.usefixtures("no_sockets")
def test_a_catalogue_name_stands_for_its_source(cache_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = CatalogEntry(
        name="tiny",
        source="hf:o/m#m.gguf",
        family="llama",
        context=1,
        licence="MIT",
        description="",
        tested="no",
        prefill=Precision(weights=WeightFormat.INT8, cache=KVFormat.BF16),
        decode=Precision(weights=WeightFormat.INT4, cache=KVFormat.INT8),
        size=1,
        sha256=SHA,
    )
    monkeypatch.setitem(load_catalog(), "tiny", entry)
    path = put(entry.source)
    assert resolve("tiny") == LocalModel("tiny", path)
    assert cached("tiny") is not None


@pytest.mark.usefixtures("no_sockets")
def test_a_cached_file_with_another_hash_than_the_catalogue_s_does_not_count(cache_home: Path) -> None:
    source = load_catalog()["smollm2"].source
    put(source)
    assert cached("smollm2") is None
    with pytest.raises(OfflineError):
        resolve("smollm2", offline=True)


def test_a_variable_with_an_odd_value_is_an_error(cache_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMARAN_OFFLINE", "maybe")
    with pytest.raises(ConfigError, match="TRIMARAN_OFFLINE is 'maybe'; use 1 or 0"):
        resolve("smollm2")


def test_local_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "My Model.Q4.gguf").write_bytes(MODEL)
    (tmp_path / "folder").mkdir()
    (tmp_path / "link.gguf").symlink_to(tmp_path / "My Model.Q4.gguf")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("My Model.Q4.gguf") == LocalModel("My Model.Q4", tmp_path / "My Model.Q4.gguf")
    assert resolve("./folder/") == LocalModel("folder", tmp_path / "folder")
    assert resolve("link.gguf") == LocalModel("link", tmp_path / "link.gguf")
    assert resolve("~/folder", offline=True).path == tmp_path / "folder"


@pytest.mark.parametrize("model", ["absent", "org/absent", "x" * 5000, "a\x00b"])
def test_an_unknown_model_says_what_there_could_be(model: str) -> None:
    with pytest.raises(SourceError, match="catalogue name") as raised:
        resolve(model)
    assert "pypi:NAME==VERSION#FILE" in str(raised.value)


@pytest.mark.parametrize("model", ["./absent", "absent.gguf", "/absent/x", "~nobody-of-this-name/m"])
def test_a_path_that_leads_nowhere_is_named(model: str) -> None:
    with pytest.raises(SourceError) as raised:
        resolve(model)
    assert str(raised.value) == f"no such file or directory: {model!r}"


def test_a_misspelt_name_gets_a_suggestion() -> None:
    with pytest.raises(SourceError, match="did you mean smollm2"):
        resolve("smolm2")


def test_a_cache_below_a_file_cannot_be_written(cache_home: Path, web: FakeWeb) -> None:
    cache_home.write_text("in the way")
    with pytest.raises(SourceError, match=r"in the cache .*Not a directory|File exists"):
        resolve(f"{web.url}/m.gguf")
