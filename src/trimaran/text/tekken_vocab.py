"""Reads ``tekken.json``, Mistral's own format: control tokens take the first ids, then tiktoken's byte strings by rank.

Source: ``mistral_common/tokens/tokenizers/tekken.py``.
"""

from base64 import b64decode
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from trimaran.base.errors import CheckpointError
from trimaran.checkpoint.json_file import Read
from trimaran.text.byte_table import ByteTable
from trimaran.text.control import ControlToken, ControlTokens
from trimaran.text.pretokenizers import Cutting
from trimaran.text.ranked_vocab import ranked_tokenizer
from trimaran.text.token_config import TokenConfig, check_size
from trimaran.text.vocabulary import Vocabulary

NAMED = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
BEFORE_V11 = (  # files up to v7 may leave their control tokens out
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"),
    *("[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]"),
    *("[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
)


class _Config(msgspec.Struct):
    pattern: str
    default_vocab_size: int
    default_num_special_tokens: int


class _Token(msgspec.Struct):
    rank: int
    token_bytes: str


class _Special(msgspec.Struct):
    rank: int
    token_str: str
    is_control: bool = True


class _File(msgspec.Struct):
    config: _Config
    vocab: list[_Token]
    special_tokens: list[_Special] | None = None


def read_tekken_vocab(path: Path, config: Mapping[str, Any], read: Read = Path.read_bytes) -> Vocabulary:
    """Builds the vocabulary from the file at ``path`` and the end ids of ``config``, the parsed ``config.json``.

    Raises ``CheckpointError`` when the file is damaged.
    """
    file = _read(path, read)
    first = file.config.default_num_special_tokens
    check_size(first, path)
    check_size(file.config.default_vocab_size, path)
    special = _special(file, path)
    tokens = _tokens(file, path)
    cutting = Cutting((file.config.pattern,))
    by_text = {token.token_str: token.rank for token in special}
    return Vocabulary(
        core=ranked_tokenizer(tokens, first, cutting, {}),
        table=ByteTable.of([*(token.token_str.encode() for token in special), *tokens]),
        control=ControlTokens(ControlToken(text, token_id) for text, token_id in by_text.items()),
        control_ids=frozenset(token.rank for token in special if token.is_control),
        bos_id=by_text.get(NAMED["bos_token"]),
        add_bos=True,
        eos_ids=TokenConfig.read(path.parent, config, read).ends(by_text.get(NAMED["eos_token"])),
        named={name: text for name, text in NAMED.items() if text in by_text},
    )


def _read(path: Path, read: Read) -> _File:
    try:
        return msgspec.json.decode(read(path), type=_File)
    except (OSError, msgspec.DecodeError) as error:  # also what has the wrong type
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def _special(file: _File, path: Path) -> list[_Special]:
    """Control tokens in the order of their ids; those that nobody named are fillers."""
    count = file.config.default_num_special_tokens
    listed = file.special_tokens or [_Special(rank, text) for rank, text in enumerate(BEFORE_V11)]
    special = [*listed, *(_Special(rank, f"<SPECIAL_{rank}>") for rank in range(len(listed), count))]
    special.sort(key=lambda token: token.rank)
    if [token.rank for token in special] != list(range(count)):
        raise CheckpointError(f"{path} has special tokens whose ranks are not 0 to {count - 1}, each once")
    return special


def _tokens(file: _File, path: Path) -> list[bytes]:
    """The vocabulary proper, which the file may hold more of than the model has."""
    count = file.config.default_vocab_size - file.config.default_num_special_tokens
    ranked = list(islice(file.vocab, max(0, count)))
    if [token.rank for token in ranked] != list(range(count)):
        raise CheckpointError(f"{path} needs tokens of rank 0 to {count - 1} in order")
    try:
        return [b64decode(token.token_bytes, validate=True) for token in ranked]
    except ValueError as error:
        raise CheckpointError(f"{path} has a token that is not base64: {error}") from error
