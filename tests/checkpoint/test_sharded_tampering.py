"""A model in several shards: whatever is done to any of them, nothing is served, and the file is named."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from models.families import write_checkpoint
from trimaran.base.errors import IntegrityError
from trimaran.checkpoint.file_record import MANIFEST, SIGNATURE
from trimaran.checkpoint.manifest import make_manifest, read_manifest, write_manifest
from trimaran.checkpoint.signature import sign_manifest
from trimaran.checkpoint.verify import Verification, verify_model_integrity, write_model_manifest
from trimaran.engine.config import EngineConfig
from trimaran.engine.load import load_engine

from .model_files import safetensors
from .test_verify import flip, write_keys

SHARDS = 3
INDEX = "model.safetensors.index.json"


def shard(number: int) -> str:
    return f"model-{number + 1:05d}-of-{SHARDS:05d}.safetensors"


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A model in shards, with a signed manifest; the keys lie beside the folder."""
    folder = write_checkpoint("qwen3", tmp_path_factory.mktemp("models") / "model")
    [path] = folder.glob("*.safetensors")
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    places: dict[str, str] = {}
    parts: list[dict[str, tuple[str, list[int], bytes]]] = [{} for _ in range(SHARDS)]
    for count, (name, tensor) in enumerate(header.items()):
        start, end = (8 + size + at for at in tensor["data_offsets"])
        parts[count % SHARDS][name] = tensor["dtype"], tensor["shape"], data[start:end]
        places[name] = shard(count % SHARDS)
    path.unlink()
    for number, part in enumerate(parts):
        (folder / shard(number)).write_bytes(safetensors(part))
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": len(data)}, "weight_map": places}, indent=1))
    write_model_manifest(folder)
    private, _ = write_keys(folder.parent, "ours")
    write_keys(folder.parent, "other")
    sign_manifest(folder, private)
    return folder


@pytest.fixture
def model(whole, tmp_path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "model"))


def load(folder: Path, **options) -> None:
    config = EngineConfig(model=str(folder), max_model_len=64, max_num_seqs=2, threads=1, **options)
    load_engine(config).close()


def refused(folder: Path, *said: str, **options: str) -> None:
    """Verifying and loading both refuse the model, with all of that in the text."""
    key = options.get("manifest_key")
    for check in (lambda: verify_model_integrity(folder, public_key=key), lambda: load(folder, **options)):
        with pytest.raises(IntegrityError) as caught:
            check()
        for each in said:
            assert each in str(caught.value)


def test_what_is_whole_is_loaded(model, whole):
    load(model)
    load(model / INDEX, manifest_key=str(whole.parent / "ours.pub.pem"))


def data_start(path: Path) -> int:
    return 8 + int.from_bytes(path.read_bytes()[:8], "little")


REGIONS: dict[str, Callable[[Path], int]] = {
    "header length": lambda _: 0,
    "header": lambda path: data_start(path) // 2,
    "end of the header": lambda path: data_start(path) - 1,
    "first tensor": data_start,
    "middle": lambda path: (data_start(path) + path.stat().st_size) // 2,
    "last byte": lambda path: path.stat().st_size - 1,
}


@pytest.mark.parametrize("number", range(SHARDS))
@pytest.mark.parametrize("region", REGIONS)
def test_a_flipped_bit_in_each_region_of_each_shard(model, number, region):
    path = model / shard(number)
    flip(path, REGIONS[region](path))
    refused(model, f"{path.name} holds other bytes")


@pytest.mark.parametrize("place", [0.0, 0.5, 0.999])
def test_a_flipped_bit_in_the_index(model, place):
    path = model / INDEX
    flip(path, int(path.stat().st_size * place))
    refused(model, INDEX)


@pytest.mark.parametrize("number", range(SHARDS))
@pytest.mark.parametrize("left", ["nothing", "header", "all but a byte"])
def test_a_truncated_shard(model, number, left):
    path = model / shard(number)
    size = path.stat().st_size
    os.truncate(path, {"nothing": 0, "header": data_start(path), "all but a byte": size - 1}[left])
    refused(model, f"{path.name} has", f"instead of {size}")


@pytest.mark.parametrize("number", range(SHARDS))
def test_a_missing_shard(model, number):
    (model / shard(number)).unlink()
    refused(model, f"{shard(number)} is missing")


def test_a_missing_index(model):
    (model / INDEX).unlink()
    refused(model, f"{INDEX} is missing")


@pytest.mark.parametrize("name", ["model-00004-of-00003.safetensors", "payload.bin", "deep/er/notes.txt", ".hidden"])
def test_an_extra_file(model, name):
    path = model / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes((model / shard(0)).read_bytes())
    refused(model, f"{name} is not in the manifest")


def test_swapped_shards(model):
    """Each is a whole shard of this model, under another's name."""
    first, second, spare = model / shard(0), model / shard(1), model.parent / "spare"
    first.rename(spare)
    second.rename(first)
    spare.rename(second)
    refused(model, first.name, second.name)


def test_one_shard_in_place_of_another(model):
    shutil.copy(model / shard(2), model / shard(1))
    refused(model, shard(1))


def test_swapped_tensors_in_the_index(model):
    path = model / INDEX
    index = json.loads(path.read_text())
    names = list(index["weight_map"])
    index["weight_map"][names[0]], index["weight_map"][names[1]] = (
        index["weight_map"][n] for n in (names[1], names[0])
    )
    path.write_text(json.dumps(index, indent=1))
    refused(model, INDEX)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (r'"size": (\d)', r'"size": 1\1'),
        (r'("sha256": ")(.)', r"\g<1>0"),
        (r'("name": ")model-00001', r"\1model-00009"),
        (r'("digest": ")....', r"\g<1>0000"),
    ],
)
def test_an_edited_manifest(model, old, new):
    path = model / MANIFEST
    text = path.read_text()
    edited = re.sub(old, new, text, count=1)
    assert edited != text
    path.write_text(edited)
    refused(model, MANIFEST)


def test_a_manifest_made_to_fit_a_tampered_shard(model, whole):
    """Without a key it is a manifest like any other; with one, it is nobody's."""
    flip(model / shard(1), -1)
    manifest, _ = read_manifest(model)
    signature = (model / SIGNATURE).read_bytes()
    write_model_manifest(model)
    (model / SIGNATURE).write_bytes(signature)
    assert verify_model_integrity(model).digest != manifest.digest
    refused(model, "not a signature", manifest_key=str(whole.parent / "ours.pub.pem"))


def test_a_manifest_that_leaves_a_shard_out(model):
    """Its digest fits, but a file that it does not list is too many."""
    manifest, _ = read_manifest(model)
    write_manifest(model, make_manifest([file for file in manifest.files if file.name != shard(2)]))
    refused(model, f"{shard(2)} is not in the manifest")


def test_the_wrong_key(model, whole):
    refused(model, "not a signature", "other.pub.pem", manifest_key=str(whole.parent / "other.pub.pem"))


def test_no_signature_where_a_key_asks_for_one(model, whole):
    (model / SIGNATURE).unlink()
    refused(model, "is not signed", manifest_key=str(whole.parent / "ours.pub.pem"))


def test_no_manifest_where_there_must_be_one(model):
    (model / MANIFEST).unlink()
    with pytest.raises(IntegrityError, match=f"has no {MANIFEST}"):
        load(model, verify=Verification.ALWAYS)


def test_a_shard_that_was_tampered_with_after_a_good_start(model):
    """What an earlier start has kept of the model serves nothing."""
    load(model)
    flip(model / shard(1), -1)
    refused(model, f"{shard(1)} holds other bytes")
