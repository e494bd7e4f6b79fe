import json

import pytest

from trimaran.base.errors import CheckpointError, IntegrityError
from trimaran.checkpoint.file_record import MANIFEST, SIGNATURE, FileRecord
from trimaran.checkpoint.manifest import folder_files, make_manifest, read_manifest, write_manifest
from trimaran.checkpoint.verify import verify_model_integrity, write_model_manifest

ZERO = "0" * 64


def test_a_manifest_lists_the_whole_folder_by_name(tmp_path):
    (tmp_path / "b").write_bytes(b"bb")
    (tmp_path / "a" / "deep").mkdir(parents=True)
    (tmp_path / "a" / "deep" / "c").write_bytes(b"")
    (tmp_path / "trimaran.json").write_text("ours")
    (tmp_path / "link").symlink_to(tmp_path / "b")
    (tmp_path / SIGNATURE).write_text("of another manifest")
    written = write_model_manifest(tmp_path)
    assert [(file.name, file.size) for file in written.files] == [("a/deep/c", 0), ("b", 2), ("link", 2)]
    assert written.files[1].sha256 == "3b64db95cb55c763391c707108489ae18b4112d783300de38e033b4c98c3deaf"
    assert read_manifest(tmp_path)[0] == written == verify_model_integrity(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "link", "trimaran.json", MANIFEST]


def test_the_digest_depends_on_every_file_but_not_on_their_order():
    files = [FileRecord("b", ZERO, 1), FileRecord("a", "1" * 64, 2)]
    digest = make_manifest(files).digest
    assert make_manifest(files[::-1]).digest == digest
    changed = [files[:1], [files[0], FileRecord("a", ZERO, 2)], [files[0], FileRecord("a", "1" * 64, 3)]]
    assert len({digest, *(make_manifest(each).digest for each in changed)}) == 4


def test_no_manifest_is_none(tmp_path):
    assert read_manifest(tmp_path) is None
    with pytest.raises(IntegrityError, match="holds no files"):
        write_model_manifest(tmp_path)
    with pytest.raises(CheckpointError, match="cannot read"):
        list(folder_files(tmp_path / "nowhere"))


def edited(change) -> dict:
    manifest = json.loads(json.dumps({"version": 1, "digest": "", "files": []}))
    made = make_manifest([FileRecord("a", ZERO, 1), FileRecord("b", ZERO, 1)])
    manifest |= {"digest": made.digest, "files": [{"name": f.name, "sha256": f.sha256, "size": 1} for f in made.files]}
    change(manifest)
    return manifest


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m: m["files"][0].update(size=2), "was edited"),
        (lambda m: m["files"].pop(), "was edited"),
        (lambda m: m.update(digest=ZERO), "was edited"),
        (lambda m: m.update(version=2), "version 2"),
        (lambda m: m.update(extra=1), "damaged"),
        (lambda m: m.update(files=[]), "must list"),
        (lambda m: m["files"].reverse(), "must list"),
        (lambda m: m["files"][1].update(name="a"), "must list"),
        (lambda m: m["files"][0].update(name="../a"), "no file of the model"),
        (lambda m: m["files"][0].update(name="/a"), "no file of the model"),
        (lambda m: m["files"][0].update(name="a\\b"), "no file of the model"),
        (lambda m: m["files"][0].update(name="a//b"), "no file of the model"),
        (lambda m: m["files"][1].update(name=MANIFEST), "no file of the model"),
        (lambda m: m["files"][0].update(sha256="0" * 63), "no SHA-256"),
        (lambda m: m["files"][0].update(sha256="G" * 64), "no SHA-256"),
        (lambda m: m["files"][0].update(size=-1), "no SHA-256"),
    ],
)
def test_a_manifest_that_was_edited_is_refused(tmp_path, change, said):
    (tmp_path / MANIFEST).write_text(json.dumps(edited(change)))
    with pytest.raises(IntegrityError, match=said):
        read_manifest(tmp_path)


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"\xff", b"[" * 100_000, b'{"version": 1}'])
def test_what_is_no_manifest_is_refused(tmp_path, text):
    (tmp_path / MANIFEST).write_bytes(text)
    with pytest.raises(IntegrityError, match=f"{MANIFEST} is damaged"):
        read_manifest(tmp_path)


def test_writing_leaves_the_old_manifest_until_the_new_one_is_whole(tmp_path):
    first = make_manifest([FileRecord("a", ZERO, 1)])
    write_manifest(tmp_path, first)
    write_manifest(tmp_path, make_manifest([FileRecord("b", ZERO, 1)]))
    assert [file.name for file in read_manifest(tmp_path)[0].files] == ["b"]
    assert [path.name for path in tmp_path.iterdir()] == [MANIFEST]
