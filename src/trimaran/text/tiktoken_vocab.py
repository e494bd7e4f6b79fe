"""Reads ``tiktoken.model`` and ``qwen.tiktoken``: a line per token, its bytes in base64 and its rank.

The file says neither how text is cut into words nor which control tokens there are. The first is known by the
tokenizer's class, the second stands in ``tokenizer_config.json``; ids that are named nowhere are reserved.
"""

from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimaran.base.errors import CheckpointError, UnsupportedError
from trimaran.checkpoint.json_file import Read
from trimaran.text.byte_table import ByteTable
from trimaran.text.control import ControlToken, ControlTokens
from trimaran.text.pretokenizers import KIMI, QWEN2, Cutting
from trimaran.text.ranked_vocab import ranked_tokenizer
from trimaran.text.token_config import AddedToken, TokenConfig, check_size, control_tokens
from trimaran.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class _Class:
    """What a tokenizer's own code adds to the file. ``control`` holds where the configuration adds no tokens."""

    cutting: Cutting
    control: tuple[str, ...] = ()
    reserved: int = 0  # ids for control tokens after the vocabulary


CLASSES = {
    "TikTokenTokenizer": _Class(KIMI, reserved=256),
    "QWenTokenizer": _Class(
        QWEN2, ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{i}|>" for i in range(205)))
    ),
}


def read_tiktoken_vocab(path: Path, config: Mapping[str, Any], read: Read = Path.read_bytes) -> Vocabulary:
    """Builds the vocabulary from the file at ``path``, its companions, and ``config``, the parsed ``config.json``.

    Raises ``CheckpointError`` when a file is damaged, ``UnsupportedError`` when the tokenizer's class is unknown.
    """
    companions = TokenConfig.read(path.parent, config, read)
    name = companions.options.get("tokenizer_class")
    if not isinstance(name, str) or name not in CLASSES:
        raise UnsupportedError(
            f"{path} does not say how text is cut into words, and the tokenizer_class {name!r} in"
            f" {companions.path.name} is not known here; known are {', '.join(CLASSES)}"
        )
    tokens = _tokens(path, read)
    added = _added(companions, CLASSES[name], len(tokens))
    by_text = {token.text: token_id for token_id, token in added.items()}
    if len(by_text) != len(added):
        raise CheckpointError(f"{companions.path} adds a token twice")
    ids = {key: by_text.get(text) for key, text in companions.named.items()}
    plain = {token.text: token_id for token_id, token in added.items() if not token.steers}
    return Vocabulary(
        core=ranked_tokenizer(tokens, 0, CLASSES[name].cutting, plain),
        table=ByteTable.of([*tokens, *(token.text.encode() for token in added.values())]),
        control=ControlTokens(control_tokens(added)),
        control_ids=frozenset(token_id for token_id, token in added.items() if token.special),
        bos_id=ids.get("bos_token"),
        add_bos=bool(companions.options.get("add_bos_token", False)),
        eos_ids=companions.ends(ids.get("eos_token")),
        named=companions.named,
        added=tuple(ControlToken(text, token_id) for text, token_id in plain.items()),
    )


def _tokens(path: Path, read: Read) -> list[bytes]:
    ranked: list[bytes] = []
    try:
        lines = read(path).splitlines()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        token, _, rank = line.partition(b" ")
        try:
            ranked.append(b64decode(token, validate=True))
            expected = int(rank) == number - 1
        except ValueError:
            expected = False
        if not expected:
            raise CheckpointError(f"{path} has a bad line {number}: {line!r:.80}; wanted are base64 and the rank")
    return ranked


def _added(companions: TokenConfig, known: _Class, first: int) -> dict[int, AddedToken]:
    """The tokens after the vocabulary, without gaps, in the order of their ids, which count from ``first``."""
    named = companions.added_tokens() or {first + i: AddedToken(text, True) for i, text in enumerate(known.control)}
    if min(named, default=first) < first:
        raise CheckpointError(f"{companions.path} adds a token as {min(named)}, but ids below {first} are taken")
    end = max([first + known.reserved, *(token_id + 1 for token_id in named)])
    check_size(end, companions.path)
    return {i: named.get(i, AddedToken(f"<|reserved_token_{i}|>", True)) for i in range(first, end)}
