import json
from pathlib import Path

import msgspec
import pytest

from trimaran.base.errors import ConfigError
from trimaran.checkpoint.catalog import find_entry, load_catalog, parse_entry
from trimaran.checkpoint.source_spec import HubSource, parse_source
from trimaran.models.registry import FAMILIES, HF

FAMILIES_DATA = Path(__file__).resolve().parent.parent / "data" / "families"
GOOD = {
    "name": "tiny",
    "source": "hf:org/m#m.gguf",
    "family": "llama",
    "context": 128,
    "licence": "MIT",
    "description": "a model",
    "size": 5,
    "tested": "no",
    "prefill": {"weights": "int8", "cache": "bf16"},
    "decode": {"weights": "int4", "cache": "int8"},
    "sha256": "ab" * 32,
}


def yaml(**changes: object) -> bytes:
    return msgspec.yaml.encode({key: value for key, value in (GOOD | changes).items() if value is not None})


def test_every_entry_has_a_source_that_parses_and_what_is_not_on_the_hub_is_pinned() -> None:
    catalog = load_catalog()
    assert "smollm2" in catalog
    for name, entry in catalog.items():
        assert entry.name == name
        source = parse_source(entry.source)
        assert source is not None
        assert isinstance(source, HubSource) or (entry.sha256 and entry.size)
        assert "\n" not in entry.description


def test_every_familys_name_is_one_that_programs_are_built_for() -> None:
    known = {*HF.values(), *FAMILIES}
    assert {entry.family for entry in load_catalog().values()} <= known


def test_a_family_that_was_tested_has_a_tiny_model() -> None:
    configs = [json.loads(path.read_text("utf-8")) for path in FAMILIES_DATA.glob("*/config.json")]
    tiny = {config.get("text_config", config)["model_type"] for config in configs}
    if "kimi_k25" in {config["model_type"] for config in configs}:
        tiny.add("kimi_k2")
    assert tiny >= {entry.family for entry in load_catalog().values() if entry.tested == "tiny"}


def test_a_good_entry() -> None:
    entry = parse_entry("tiny.yaml", yaml())
    assert (entry.name, entry.context, entry.archive_sha256) == ("tiny", 128, None)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"licence": None}, "missing required field `licence`"),
        ({"license": "MIT"}, "unknown field `license`"),
        ({"context": "8k"}, r"Expected `int`, got `str`.*context"),
        ({"context": 0}, "must be positive"),
        ({"size": -1}, "must be positive"),
        ({"sha256": "ab"}, "not a SHA-256"),
        ({"archive_sha256": "AB" * 32}, "not a SHA-256"),
        ({"tested": "yes"}, "Invalid enum value 'yes'"),
        ({"decode": {"weights": "fp4", "cache": "int8"}}, "Invalid enum value 'fp4'"),
        ({"shape": {"vocab": 1}}, "missing required field `hidden`"),
        ({"from_memory": ["colour"]}, "from_memory names colour"),
        ({"name": "other"}, r"must be called other\.yaml"),
    ],
)
def test_a_wrong_entry_names_the_file_and_the_key(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigError, match=rf"catalog/tiny\.yaml: .*{reason}"):
        parse_entry("tiny.yaml", yaml(**changes))


@pytest.mark.parametrize("text", [b"{", b"- a\n- b", b"", b"!!python/object/apply:os.getcwd []"])
def test_what_is_no_entry(text: bytes) -> None:
    with pytest.raises(ConfigError, match=r"catalog/tiny\.yaml"):
        parse_entry("tiny.yaml", text)


def test_one_entry_is_found_without_the_others() -> None:
    load_catalog.cache_clear()
    assert find_entry("smollm2") is not None
    assert find_entry("none") is None
    assert find_entry("../catalog/smollm2") is None
    assert not load_catalog.cache_info().currsize
    assert load_catalog()["smollm2"] == find_entry("smollm2")
