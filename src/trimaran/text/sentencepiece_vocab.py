"""Reads ``tokenizer.model``, SentencePiece's own file. Source: ``sentencepiece_model.proto``."""

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from trimaran.base.errors import CheckpointError, UnsupportedError
from trimaran.checkpoint.json_file import Read
from trimaran.text.control import ControlToken, ControlTokens
from trimaran.text.sentencepiece import NORMAL, Pieces
from trimaran.text.token_config import TokenConfig
from trimaran.text.vocabulary import Vocabulary

PIECES, TRAINER, NORMALIZER = 1, 2, 3  # fields of the file
TEXT, SCORE, TYPE = 1, 2, 3  # of a piece
MODEL_TYPE, BPE, BYTE_FALLBACK = 3, 2, 35  # of the trainer's settings
CHARACTER_MAP, BLANK_FIRST, SQUEEZE, ESCAPE = 2, 3, 4, 5  # of the normaliser's; the last three are true by default
NAMED = {"unk_token": (40, 0), "bos_token": (41, 1), "eos_token": (42, 2), "pad_token": (43, -1)}  # field, default

T = TypeVar("T", int, float, bytes)
Fields = dict[int, list[int | float | bytes]]


def read_sentencepiece_vocab(path: Path, config: Mapping[str, Any], read: Read = Path.read_bytes) -> Vocabulary:
    """Builds the vocabulary from the file at ``path``, its companions, and ``config``, the parsed ``config.json``.

    Raises ``CheckpointError`` when a file is damaged, ``UnsupportedError`` when it is not BPE with bytes for what no
    piece covers, or changes text otherwise than by a blank at the beginning.
    """
    try:
        file = _fields(read(path))
        trainer, normalizer = (_fields(_last(file, part, b"")) for part in (TRAINER, NORMALIZER))
        entries = [_fields(entry) for entry in file.get(PIECES, []) if isinstance(entry, bytes)]
        pieces = Pieces(
            [_last(entry, TEXT, b"").decode() for entry in entries],
            [_last(entry, SCORE, 0.0) for entry in entries],
            [_last(entry, TYPE, NORMAL) for entry in entries],
        )
        supported = _last(trainer, MODEL_TYPE, 1) == BPE and _last(trainer, BYTE_FALLBACK, 0)
        plain = not _last(normalizer, CHARACTER_MAP, b"") and not _last(normalizer, SQUEEZE, 1)
        prefix = " " if _last(normalizer, BLANK_FIRST, 1) else ""
        places = {name: _last(trainer, *where) for name, where in NAMED.items()}
    except (OSError, ValueError, struct.error) as error:
        raise CheckpointError(f"{path} is no SentencePiece model, or a damaged one: {error}") from error
    if not (supported and plain and _last(normalizer, ESCAPE, 1)):
        raise UnsupportedError(
            f"{path} is a SentencePiece model of a kind that is not read here: it must be BPE with byte fallback and"
            " without normalisation; a tokenizer.json beside it would be read instead"
        )
    companions = TokenConfig.read(path.parent, config, read)
    ids = {name: place for name, place in places.items() if 0 <= place < len(pieces.texts)}
    return Vocabulary(
        core=pieces.tokenizer(),
        table=pieces.table(),
        control=ControlTokens(ControlToken(pieces.texts[token_id], token_id) for token_id in pieces.control_ids),
        control_ids=pieces.control_ids,
        bos_id=ids.get("bos_token"),
        add_bos=bool(companions.options.get("add_bos_token", True)),
        eos_ids=companions.ends(ids.get("eos_token")),
        named={name: pieces.texts[place] for name, place in ids.items()} | companions.named,
        prefix=prefix,
        drops_blank=bool(prefix),
    )


def _fields(message: bytes) -> Fields:
    """The fields of a message in protobuf's wire format, by number; raises ``ValueError`` on anything else."""
    found: Fields = {}
    for number, value in _read(message):
        found.setdefault(number, []).append(value)
    return found


def _read(message: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, wire = key >> 3, key & 7
        value: int | float | bytes
        if wire == 0:
            value, at = _varint(message, at)
            value -= (value >> 63) << 64  # negative numbers are written as 64 bits
        elif wire == 2:
            size, at = _varint(message, at)
            value, at = message[at : at + size], at + size
        elif wire == 5:
            value, at = struct.unpack_from("<f", message, at)[0], at + 4
        else:
            raise ValueError(f"a field of wire type {wire}")
        if at > len(message):
            raise ValueError("it ends within a field")
        yield number, value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            raise ValueError("it ends within a number")
        value |= (message[at] & 127) << shift
        at += 1
        if message[at - 1] < 128:
            return value, at
    raise ValueError("a number of more than 64 bits")


def _last(fields: Fields, number: int, default: T) -> T:
    """The value of a field that may occur once; the last one counts."""
    value = fields.get(number, [default])[-1]
    if type(value) is not type(default):
        raise ValueError(f"field {number} is of another type")
    return value
