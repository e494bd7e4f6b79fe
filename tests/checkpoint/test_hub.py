import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from trimaran.base.errors import SourceError
from trimaran.checkpoint import open_checkpoint
from trimaran.checkpoint.file_record import MANIFEST, RECORD
from trimaran.checkpoint.sources import cached, resolve

from .fake_web import FakeWeb, Page, json_page
from .model_files import Gguf, safetensors

COMMIT = "c0ffee" * 6 + "c0de"
GGUF = Gguf(metadata=[("general.architecture", "str", "llama")]).build()
FILES = {
    "config.json": json.dumps({"model_type": "llama"}).encode(),
    "tokenizer.json": b"{}",
    "tokenizer.model": b"sp",
    "chat_template.jinja": b"{{ x }}",
    "merges.txt": b"",
    "model.safetensors": safetensors({"w": ("F32", (2,), bytes(8))}),
    "consolidated.safetensors": b"the maker's own copy",
    "pytorch_model.bin": b"pickle",
    "README.md": b"hello",
    "onnx/model.onnx": b"",
    "original/params.json": b"{}",
}
WANTED = {"config.json", "tokenizer.json", "tokenizer.model", "chat_template.jinja", "merges.txt", "model.safetensors"}


class Hub:
    """A fake hub with one repository, ``org/m``."""

    def __init__(self, web: FakeWeb) -> None:
        self.web = web

    def hold(self, files: dict[str, bytes], *, commit: str = COMMIT, revision: str = "main", **changes: Any) -> None:
        siblings = []
        for name, data in files.items():
            sibling: dict[str, Any] = {"rfilename": name, "size": len(data), "blobId": "x"}
            if name.endswith((".safetensors", ".gguf")):
                sibling["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
            siblings.append(sibling | changes.get(name, {}))
            self.web.pages[f"/org/m/resolve/{commit}/{name}"] = Page(data, etag=f'"{name}"')
        listing = {"id": "org/m", "sha": commit, "siblings": siblings}
        self.web.pages[f"/api/models/org/m/revision/{revision}?blobs=true"] = json_page(listing)

    def fetched(self) -> set[str]:
        prefix = f"/org/m/resolve/{COMMIT}/"
        return {request.path.removeprefix(prefix) for request in self.web.requests if request.path.startswith(prefix)}


@pytest.fixture
def hub(web: FakeWeb, monkeypatch: pytest.MonkeyPatch) -> Hub:
    monkeypatch.setenv("HF_ENDPOINT", web.url + "/")
    return Hub(web)


def test_weights_config_and_tokenizer_are_taken(hub: Hub) -> None:
    hub.hold(FILES)
    model = resolve("hf:org/m")
    assert model.name == "org/m"
    assert hub.fetched() == WANTED
    assert {file.name for file in model.path.iterdir()} == WANTED | {RECORD, MANIFEST}
    with open_checkpoint(model.path) as checkpoint:
        assert checkpoint.names == ["w"]
    here = cached("hf:org/m")
    assert here is not None
    assert here.record.revision == COMMIT


def test_a_repository_made_from_a_cache_does_not_replace_our_record(hub: Hub) -> None:
    hub.hold(FILES | {"trimaran.manifest.json": b"{}", "trimaran.json": b'{"source": "hf:org/another"}'})
    model = resolve("hf:org/m")
    assert hub.fetched() == WANTED
    assert cached("hf:org/m") is not None
    hub.web.requests.clear()
    assert resolve("hf:org/m") == model
    assert not hub.web.requests


def test_shards_and_their_index_are_taken(hub: Hub) -> None:
    shard = safetensors({"w": ("F32", (2,), bytes(8))})
    index = json.dumps({"weight_map": {"w": "model-00001-of-00001.safetensors"}}).encode()
    hub.hold(
        {
            "config.json": FILES["config.json"],
            "model-00001-of-00001.safetensors": shard,
            "model.safetensors.index.json": index,
        }
    )
    with open_checkpoint(resolve("hf:org/m").path) as checkpoint:
        assert checkpoint.names == ["w"]


def test_the_revision_is_asked_for(hub: Hub) -> None:
    hub.hold(FILES, revision="refs%2Fpr%2F1")
    assert resolve("hf:org/m@refs/pr/1").path.is_dir()


def test_one_gguf_file(hub: Hub) -> None:
    hub.hold({"a.gguf": GGUF, "sub/b.gguf": GGUF, "config.json": b"{}"})
    assert resolve("hf:org/m").path.name == "a.gguf"
    model = resolve("hf:org/m#sub/b.gguf")
    assert (model.name, model.path.name) == ("b", "b.gguf")
    assert hub.fetched() == {"a.gguf", "sub/b.gguf"}


def test_all_parts_of_a_gguf_model(hub: Hub) -> None:
    names = [f"m-0000{number}-of-00002.gguf" for number in (1, 2)]
    parts = {
        name: Gguf([("split.no", "u16", number), ("split.count", "u16", 2)]).build()
        for number, name in enumerate(names)
    }
    hub.hold(parts | {f"q4/{name}": data for name, data in parts.items()} | {"config.json": b"{}"})
    for source, folder in (("hf:org/m", ""), (f"hf:org/m#q4/{names[1]}", "q4/")):
        path = resolve(source).path
        assert path.name == names[0]
        with open_checkpoint(path) as checkpoint:
            assert checkpoint.names == []
        assert {f"{folder}{name}" for name in names} <= hub.fetched()
    hub.hold({names[0]: parts[names[0]]}, revision="cut")
    with pytest.raises(SourceError, match=rf"no file '{names[1]}'; its GGUF files: {names[0]}"):
        resolve("hf:org/m@cut")


@pytest.mark.parametrize(
    ("files", "source", "reason"),
    [
        (
            {"a.gguf": GGUF, "b.gguf": GGUF},
            "hf:org/m",
            r"several GGUF files; choose one with #FILE: a\.gguf \(0\.0 MB\)",
        ),
        ({"pytorch_model.bin": b""}, "hf:org/m", "only pickled weights"),
        ({"README.md": b""}, "hf:org/m", r"no \.safetensors or \.gguf"),
        ({"a.gguf": GGUF}, "hf:org/m#c.gguf", r"no file 'c\.gguf'; its GGUF files: a\.gguf"),
    ],
)
def test_a_repository_without_what_is_needed(hub: Hub, files: dict[str, bytes], source: str, reason: str) -> None:
    hub.hold(files)
    with pytest.raises(SourceError, match=reason):
        resolve(source)


def test_names_that_lead_elsewhere_are_not_fetched(hub: Hub, cache_home: Path) -> None:
    hub.hold(FILES | {"../../evil.json": b"x", "..\\evil.json": b"x", "/evil.json": b"x"})
    assert {file.name for file in resolve("hf:org/m").path.iterdir()} == WANTED | {RECORD, MANIFEST}
    assert not list(cache_home.rglob("evil*"))


def test_the_token_is_shown_to_the_hub_alone_and_never_printed(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_s3cret")
    hub.hold(FILES)
    other = hub.web.url.replace("127.0.0.1", "localhost")
    hub.web.pages[f"/org/m/resolve/{COMMIT}/model.safetensors"] = Page(redirect=f"{other}/cdn?sig=1")
    hub.web.pages["/cdn?sig=1"] = Page(FILES["model.safetensors"])
    resolve("hf:org/m")
    told = {request.path: request.headers.get("authorization") for request in hub.web.requests}
    assert told.pop("/cdn?sig=1") is None
    assert set(told.values()) == {"Bearer hf_s3cret"}
    printed = capsys.readouterr()
    assert "s3cret" not in printed.err + printed.out


@pytest.mark.parametrize(("status", "hint"), [(401, "HF_TOKEN"), (403, "licence accepted"), (404, "no such file")])
def test_a_refusal_says_what_to_do(hub: Hub, status: int, hint: str) -> None:
    hub.hold(FILES)
    hub.web.pages["/api/models/org/m/revision/main?blobs=true"].failures = [status]
    with pytest.raises(SourceError, match=hint):
        resolve("hf:org/m")


def test_a_wrong_hash_is_refused(hub: Hub) -> None:
    hub.hold(FILES, **{"model.safetensors": {"lfs": {"sha256": "0" * 64, "size": len(FILES["model.safetensors"])}}})
    with pytest.raises(SourceError, match=f"expected {'0' * 64}"):
        resolve("hf:org/m")
    assert cached("hf:org/m") is None


def test_an_interrupted_pull_keeps_the_files_it_has(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMARAN_CONNECTIONS", "1")  # in order, weights first
    hub.hold(FILES)
    weights = f"/org/m/resolve/{COMMIT}/model.safetensors"
    hub.web.pages[f"/org/m/resolve/{COMMIT}/tokenizer.json"].failures = [404]
    with pytest.raises(SourceError, match="404"):
        resolve("hf:org/m")
    assert cached("hf:org/m") is None
    resolve("hf:org/m")
    assert len(hub.web.asked(weights)) == 1


def test_files_of_two_commits_are_never_mixed(hub: Hub) -> None:
    hub.hold(FILES | {"tokenizer.json": b"old"})
    hub.web.pages[f"/org/m/resolve/{COMMIT}/merges.txt"].failures = [404]
    with pytest.raises(SourceError, match="404"):
        resolve("hf:org/m")
    hub.hold(FILES | {"tokenizer.json": b"new"}, commit="b" * 40)
    assert (resolve("hf:org/m").path / "tokenizer.json").read_bytes() == b"new"


def test_an_answer_that_is_no_hub_s(hub: Hub) -> None:
    hub.web.pages["/api/models/org/m/revision/main?blobs=true"] = Page(b"<html>login</html>", "text/html")
    with pytest.raises(SourceError, match="does not answer as a model hub does"):
        resolve("hf:org/m")
