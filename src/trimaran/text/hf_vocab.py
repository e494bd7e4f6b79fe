"""Reads ``tokenizer.json`` and its companions from a checkpoint's directory (the Hugging Face layout)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers.decoders import ByteLevel
from tokenizers.models import BPE

from trimaran.base.errors import CheckpointError, UnsupportedError
from trimaran.checkpoint.json_file import read_object
from trimaran.text.byte_level import ByteTable
from trimaran.text.control import ControlToken, ControlTokens
from trimaran.text.vocabulary import Vocabulary

NAMED = ("bos_token", "eos_token", "unk_token", "pad_token")


def read_hf_vocab(directory: Path, config: Mapping[str, Any]) -> Vocabulary:
    """Builds the vocabulary from ``tokenizer.json``, ``tokenizer_config.json`` and the end ids that the configs name.

    ``config`` is the parsed ``config.json``. Raises ``CheckpointError`` when the file is missing or damaged,
    ``UnsupportedError`` when it is not byte-level BPE.
    """
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError(f"{directory} has no tokenizer.json")
    try:
        core = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # what the library raises is not typed
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not (isinstance(core.model, BPE) and isinstance(core.decoder, ByteLevel)):
        raise UnsupportedError(
            f"{path} is not a byte-level BPE vocabulary; this version reads no SentencePiece or WordPiece"
        )
    core.no_truncation()  # both come from training set-ups and would cut or fill prompts
    core.no_padding()
    options = _optional(directory / "tokenizer_config.json")
    named = {name: text for name in NAMED if (text := _content(options.get(name))) is not None}
    ids = {name: core.token_to_id(text) for name, text in named.items()}
    begins_with = core.encode("").ids  # what the file's own post-processor adds
    core.encode_special_tokens = True  # from here on, control tokens in text are text

    added = core.get_added_tokens_decoder()
    special = {token_id: token for token_id, token in added.items() if token.special}
    return Vocabulary(
        core=core,
        table=_table(core, added),
        control=ControlTokens(_token(token_id, token) for token_id, token in special.items()),
        control_ids=frozenset(special),
        bos_id=ids.get("bos_token"),
        add_bos=bool(options.get("add_bos_token", begins_with[:1] == [ids.get("bos_token")])),
        eos_ids=_end_ids(ids.get("eos_token"), config, _optional(directory / "generation_config.json")),
        named=named,
        added=tuple(_token(token_id, token) for token_id, token in added.items() if not token.special),
    )


def _token(token_id: int, token: tokenizers.AddedToken) -> ControlToken:
    return ControlToken(token.content, token_id, token.lstrip, token.rstrip)


def _table(core: tokenizers.Tokenizer, added: Mapping[int, tokenizers.AddedToken]) -> ByteTable:
    vocab = core.get_vocab(with_added_tokens=True)
    tokens = [""] * (max(vocab.values(), default=-1) + 1)
    for token, token_id in vocab.items():
        tokens[token_id] = token
    return ByteTable(tokens, added.keys())


def _end_ids(eos_id: int | None, *configs: Mapping[str, Any]) -> frozenset[int]:
    ids: set[int] = set() if eos_id is None else {eos_id}
    for config in configs:
        value = config.get("eos_token_id")
        ids.update(value if isinstance(value, list) else [] if value is None else [value])
    return frozenset(ids)


def _optional(path: Path) -> dict[str, Any]:
    return read_object(path)[0] if path.is_file() else {}


def _content(token: Any) -> str | None:
    """A token is written as a string, or as an object with ``content``."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None
