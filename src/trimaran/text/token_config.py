"""What stands beside a tokenizer file in a checkpoint's directory: which tokens begin, end and steer."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from trimaran.base.errors import CheckpointError
from trimaran.checkpoint.json_file import Read, read_object
from trimaran.text.control import ControlToken, is_marker

NAMED = ("bos_token", "eos_token", "unk_token", "pad_token")
MOST_TOKENS = 1 << 22


@dataclass(frozen=True)
class TokenConfig:
    """``tokenizer_config.json``, and the end ids of ``config.json`` and ``generation_config.json``.

    ``named`` maps ``bos_token``, ``eos_token``, … to their text.
    """

    options: Mapping[str, Any]
    named: dict[str, str]
    end_ids: frozenset[int]
    path: Path

    @classmethod
    def read(cls, directory: Path, config: Mapping[str, Any], read: Read = Path.read_bytes) -> Self:
        """Missing files say nothing. ``config`` is the parsed ``config.json``. Raises ``CheckpointError``."""
        path = directory / "tokenizer_config.json"
        options = _optional(path, read)
        named = {name: text for name in NAMED if (text := _content(options.get(name))) is not None}
        ends: set[int] = set()
        for source in (config, _optional(directory / "generation_config.json", read)):
            value = source.get("eos_token_id")
            found = value if isinstance(value, list) else [] if value is None else [value]
            if not all(type(end) is int for end in found):
                raise CheckpointError(f"eos_token_id beside {path} must be a token id or a list of them")
            ends.update(found)
        return cls(options, named, frozenset(ends), path)

    def ends(self, eos_id: int | None) -> frozenset[int]:
        """All ids that end an answer; ``eos_id`` is that of the token named ``eos_token``."""
        return self.end_ids if eos_id is None else self.end_ids | {eos_id}

    def added_tokens(self) -> dict[int, "AddedToken"]:
        """``added_tokens_decoder``: tokens by id. Raises ``CheckpointError`` where it is malformed."""
        found = {}
        entries = self.options.get("added_tokens_decoder", {})
        if not isinstance(entries, Mapping):
            raise CheckpointError(f"added_tokens_decoder in {self.path} must be an object")
        for key, entry in entries.items():
            text = _content(entry)
            if not (key.isdecimal() and text):
                raise CheckpointError(
                    f"added_tokens_decoder in {self.path} has a malformed entry {key!r}: {entry!r:.80}"
                )
            found[int(key)] = AddedToken(text, not isinstance(entry, dict) or bool(entry.get("special", True)))
        return found


@dataclass(frozen=True)
class AddedToken:
    """A token beside the vocabulary proper. A ``special`` one gives no text in an answer."""

    text: str
    special: bool

    @property
    def steers(self) -> bool:
        """Whether text from a user must not lead to it."""
        return self.special or is_marker(self.text)


def control_tokens(added: Mapping[int, AddedToken]) -> list[ControlToken]:
    """Those of ``added`` that steer the model."""
    return [ControlToken(token.text, token_id) for token_id, token in added.items() if token.steers]


def check_size(tokens: int, path: Path) -> None:
    """Raises ``CheckpointError`` where a damaged file would have us make a table of billions of tokens."""
    if not 0 <= tokens <= MOST_TOKENS:
        raise CheckpointError(f"{path} asks for a vocabulary of {tokens} tokens; there may be up to {MOST_TOKENS}")


def _optional(path: Path, read: Read) -> dict[str, Any]:
    return read_object(path, read)[0] if path.is_file() else {}


def _content(token: Any) -> str | None:
    """A token is written as a string, or as an object with ``content``."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None
