"""Where a checkpoint keeps its chat templates."""

from typing import Any

from trimaran.base.errors import CheckpointError
from trimaran.checkpoint.checkpoint import Checkpoint
from trimaran.checkpoint.json_file import read_object

GGUF_KEY = "tokenizer.chat_template"


def find_sources(checkpoint: Checkpoint) -> dict[str, str]:
    """Jinja sources by name; ``default`` is the usual one, ``tool_use`` replaces it when there are tools.

    GGUF keeps them in its metadata, the Hugging Face layout in ``chat_template.jinja`` or ``tokenizer_config.json``.
    """
    if checkpoint.kind == "gguf":
        prefix = GGUF_KEY + "."
        found = {key.removeprefix(prefix): text for key, text in checkpoint.metadata.items() if key.startswith(prefix)}
        return _texts(
            found if GGUF_KEY not in checkpoint.metadata else {**found, "default": checkpoint.metadata[GGUF_KEY]}
        )
    file = checkpoint.directory / "chat_template.jinja"
    if file.is_file():
        try:
            return {"default": file.read_text(encoding="utf-8")}
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"cannot read {file}: {error}") from error
    file = checkpoint.directory / "tokenizer_config.json"
    templates = read_object(file)[0].get("chat_template") if file.is_file() else None
    if templates is None:
        return {}
    if isinstance(templates, list) and all(isinstance(entry, dict) and "name" in entry for entry in templates):
        return _texts({entry["name"]: entry.get("template") for entry in templates})
    return _texts({"default": templates})


def _texts(sources: dict[str, Any]) -> dict[str, str]:
    for name, source in sources.items():
        if not isinstance(source, str):
            raise CheckpointError(f"the model's chat template {name!r} is not a text")
    return sources
