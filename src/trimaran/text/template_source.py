"""Where a checkpoint keeps its chat templates, and the code for families that ship none."""

from pathlib import Path
from typing import Any

import msgspec

from trimaran.base.errors import CheckpointError
from trimaran.checkpoint.checkpoint import Checkpoint
from trimaran.checkpoint.json_file import Read, read_object
from trimaran.text.deepseek_v32 import DeepSeekV32
from trimaran.text.mistral import VERSIONS, Mistral
from trimaran.text.renderer import Renderer

GGUF_KEY = "tokenizer.chat_template"


def find_renderers(checkpoint: Checkpoint) -> dict[str, str | Renderer]:
    """Jinja or code by name; ``default`` is the usual one, ``tool_use`` replaces it when there are tools."""
    sources: dict[str, str | Renderer] = {**find_sources(checkpoint)}
    if "default" not in sources and checkpoint.kind != "gguf" and (code := _code(checkpoint)) is not None:
        sources["default"] = code
    return sources


def find_sources(checkpoint: Checkpoint) -> dict[str, str]:
    """Jinja sources by name.

    GGUF keeps them in its metadata. In the Hugging Face layout the first place that has any wins, as in transformers:
    ``chat_template.jinja`` with ``additional_chat_templates/NAME.jinja``, ``tokenizer_config.json``, and the
    ``chat_template.json`` of processors.
    """
    if checkpoint.kind == "gguf":
        prefix = GGUF_KEY + "."
        found = {key.removeprefix(prefix): text for key, text in checkpoint.metadata.items() if key.startswith(prefix)}
        return _texts(
            found if GGUF_KEY not in checkpoint.metadata else {**found, "default": checkpoint.metadata[GGUF_KEY]}
        )
    directory = checkpoint.directory
    jinja = {file.stem: file for file in sorted((directory / "additional_chat_templates").glob("*.jinja"))}
    if (directory / "chat_template.jinja").is_file():
        jinja["default"] = directory / "chat_template.jinja"
    if jinja:
        return {name: read_template(file, checkpoint.read) for name, file in jinja.items()}
    for file in (directory / "tokenizer_config.json", directory / "chat_template.json"):
        templates = read_object(file, checkpoint.read)[0].get("chat_template") if file.is_file() else None
        if templates is not None:
            return _named(templates)
    return {}


def _named(templates: Any) -> dict[str, str]:
    """The value of ``chat_template``: one text, or a list of named ones."""
    if isinstance(templates, list) and all(isinstance(entry, dict) and "name" in entry for entry in templates):
        return _texts({entry["name"]: entry.get("template") for entry in templates})
    return _texts({"default": templates})


def _texts(sources: dict[str, Any]) -> dict[str, str]:
    for name, source in sources.items():
        if not isinstance(source, str):
            raise CheckpointError(f"the model's chat template {name!r} is not a text")
    return sources


def read_template(file: Path, read: Read = Path.read_bytes) -> str:
    """The text of a Jinja file; raises ``CheckpointError`` when it is not there or not text."""
    try:
        return read(file).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"cannot read {file}: {error}") from error


def _code(checkpoint: Checkpoint) -> Renderer | None:
    """Code for a family that ships no template, if this is one."""
    if checkpoint.metadata.get("model_type") == "deepseek_v32":
        return DeepSeekV32()
    tekken = checkpoint.directory / "tekken.json"
    if not tekken.is_file():
        return None
    try:
        version = msgspec.json.decode(checkpoint.read(tekken), type=_Tekken).config.version
    except (OSError, msgspec.DecodeError) as error:
        raise CheckpointError(f"cannot read {tekken}: {error}") from error
    return next((Mistral(known) for known in VERSIONS if version == f"v{known}"), None)


class _TekkenConfig(msgspec.Struct):
    version: str


class _Tekken(msgspec.Struct):
    """As much of the file as says which chat format belongs to it."""

    config: _TekkenConfig
