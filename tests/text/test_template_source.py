import json

import pytest

from trimaran.base.errors import CheckpointError
from trimaran.text.template_source import find_sources


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


@pytest.mark.parametrize("value", [3, {"default": "A"}, [{"name": "default"}], ["A"]])
def test_what_is_not_a_template_is_named(fake_checkpoint, tmp_path, value):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": value}))
    with pytest.raises(CheckpointError, match="chat template"):
        find_sources(fake_checkpoint(kind="safetensors", directory=tmp_path))


def test_a_template_that_is_not_utf8_is_named(fake_checkpoint, tmp_path):
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(CheckpointError, match=r"chat_template\.jinja"):
        find_sources(fake_checkpoint(kind="safetensors", directory=tmp_path))
