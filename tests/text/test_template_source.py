import json

import pytest

from trimaran.base.errors import CheckpointError
from trimaran.text.deepseek_v32 import DeepSeekV32
from trimaran.text.mistral import Mistral
from trimaran.text.template_source import find_renderers, find_sources


def test_gguf_keeps_templates_in_its_metadata(fake_checkpoint):
    metadata = {
        "tokenizer.chat_template": "A",
        "tokenizer.chat_template.tool_use": "B",
        "tokenizer.chat_templates": ["x"],
    }
    assert find_sources(fake_checkpoint(metadata=metadata)) == {"default": "A", "tool_use": "B"}
    assert find_sources(fake_checkpoint(metadata={})) == {}


def test_a_directory_keeps_them_in_its_files(fake_checkpoint, tmp_path):
    checkpoint = fake_checkpoint(kind="safetensors", directory=tmp_path)
    assert find_sources(checkpoint) == {}
    config = tmp_path / "tokenizer_config.json"
    for value, expected in (
        (None, {}),
        ("A", {"default": "A"}),
        (
            [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}],
            {"default": "A", "tool_use": "B"},
        ),
    ):
        config.write_text(json.dumps({"chat_template": value}))
        assert find_sources(checkpoint) == expected
    (tmp_path / "chat_template.jinja").write_text("C é")
    assert find_sources(checkpoint) == {"default": "C é"}
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("D")
    assert find_sources(checkpoint) == {"default": "C é", "tool_use": "D"}


def test_a_processors_template_is_found(fake_checkpoint, tmp_path):
    checkpoint = fake_checkpoint(kind="safetensors", directory=tmp_path)
    (tmp_path / "chat_template.json").write_text('{"chat_template": "A"}')
    assert find_sources(checkpoint) == {"default": "A"}
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "x"}')
    assert find_sources(checkpoint) == {"default": "A"}


def test_families_without_a_template_have_code(fake_checkpoint, tmp_path):
    def renderer(model_type):
        metadata = {"model_type": model_type}
        return find_renderers(fake_checkpoint(kind="safetensors", directory=tmp_path, metadata=metadata)).get("default")

    assert isinstance(renderer("deepseek_v32"), DeepSeekV32)
    assert renderer("llama") is None
    for version, known in (("v3", False), ("v7", True), ("v11", True), ("v13", True), ("v99", False)):
        (tmp_path / "tekken.json").write_text(json.dumps({"config": {"version": version}, "vocab": []}))
        assert isinstance(renderer("ministral3"), Mistral) == known
    (tmp_path / "tekken.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"tekken\.json"):
        renderer("ministral3")
    (tmp_path / "chat_template.jinja").write_text("A")
    assert renderer("ministral3") == "A"


@pytest.mark.parametrize("value", [3, {"default": "A"}, [{"name": "default"}], ["A"]])
def test_what_is_not_a_template_is_named(fake_checkpoint, tmp_path, value):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": value}))
    with pytest.raises(CheckpointError, match="chat template"):
        find_sources(fake_checkpoint(kind="safetensors", directory=tmp_path))


def test_a_template_that_is_not_utf8_is_named(fake_checkpoint, tmp_path):
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(CheckpointError, match=r"chat_template\.jinja"):
        find_sources(fake_checkpoint(kind="safetensors", directory=tmp_path))
