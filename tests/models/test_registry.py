"""Architectures are found by their vendors' names, and unknown ones are refused."""

from pathlib import Path
from typing import Any

import pytest

from trimaran.base.errors import CheckpointError, UnsupportedError
from trimaran.models.registry import build_program, read_config

from .tiny_files import InMemory, open_tiny


@pytest.mark.parametrize(
    ("kind", "metadata", "message"),
    [
        ("gguf", {"general.architecture": "qwen9"}, "architecture 'qwen9' is not supported; supported are llama"),
        ("safetensors", {"architectures": ["RobertaModel"]}, "'RobertaModel' is not supported; supported are Llama"),
    ],
)
def test_unknown_architectures(kind: str, metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        read_config(InMemory(kind, metadata, Path(), {}))


@pytest.mark.parametrize(("kind", "key"), [("gguf", "general.architecture"), ("safetensors", "architectures")])
def test_a_file_that_names_none(kind: str, key: str) -> None:
    with pytest.raises(CheckpointError, match=key):
        read_config(InMemory(kind, {}, Path(), {}))


def test_more_layers_than_tensors_are_refused_before_they_are_built() -> None:
    tiny = open_tiny("llama3")
    tiny.metadata["num_hidden_layers"] = 10**4
    with pytest.raises(CheckpointError, match="has 10000 layers, but its files hold only"):
        read_config(tiny)


def test_the_program_of_a_config() -> None:
    cfg = read_config(open_tiny("llama3"))
    assert build_program(cfg).family == cfg.family == "llama"
