"""SentencePiece's BPE: pieces with scores, a blank written as U+2581, and bytes that no piece covers as ``<0xNN>``.

Source: the paper (Kudo and Richardson, 2018) and ``bpe_model.cc``. Of all neighbours that make a piece together, the
two whose piece has the highest score are joined, the leftmost first.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import tokenizers
from tokenizers.models import BPE
from tokenizers.normalizers import Replace

from trimaran.base.errors import CheckpointError
from trimaran.text.byte_table import ByteTable
from trimaran.text.merges import merges_of

BLANK = "\u2581"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # types of pieces
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class Pieces:
    """A SentencePiece vocabulary; all fields have one entry per id."""

    texts: Sequence[str]
    scores: Sequence[float]
    types: Sequence[int]

    def __post_init__(self) -> None:
        if not len(self.texts) == len(self.scores) == len(self.types):
            counts = f"{len(self.texts)} pieces, {len(self.scores)} scores and {len(self.types)} types"
            raise CheckpointError(f"the vocabulary has {counts}; there must be as many of each")

    def of_type(self, *types: int) -> list[int]:
        """The ids of pieces of these types."""
        return [token_id for token_id, found in enumerate(self.types) if found in types]

    @property
    def control_ids(self) -> frozenset[int]:
        """Pieces that no text may lead to: control and unknown."""
        return frozenset(self.of_type(CONTROL, UNKNOWN))

    def tokenizer(self) -> tokenizers.Tokenizer:
        """Encodes text without ever making a control piece. Raises ``CheckpointError`` on twins among the pieces."""
        normal = self.of_type(NORMAL)
        made = {self.texts[token_id]: token_id for token_id in normal}
        if len(made) != len(normal):
            twin = next(self.texts[token_id] for token_id in normal if made[self.texts[token_id]] != token_id)
            raise CheckpointError(f"the vocabulary has the piece {twin!r} twice")
        best_first = sorted(made, key=lambda text: -self.scores[made[text]])
        single = {self.texts[token_id]: token_id for token_id in self.of_type(BYTE)}
        added = {self.texts[token_id].replace(BLANK, " "): token_id for token_id in self.of_type(USER_DEFINED)}
        core = tokenizers.Tokenizer(
            BPE(vocab=added | single | made, merges=merges_of(best_first, made), byte_fallback=True)
        )
        core.normalizer = Replace(" ", BLANK)
        core.add_tokens([tokenizers.AddedToken(text, normalized=False) for text in added])
        return core

    def table(self) -> ByteTable:
        """The bytes of every piece; control pieces are plain text."""
        return piece_table(self.texts, self.control_ids)


def piece_table(texts: Iterable[str], literal: Collection[int]) -> ByteTable:
    """The bytes of pieces; those whose ids are in ``literal`` are plain text, in which U+2581 and ``<0xNN>`` stay."""
    return ByteTable.of(
        text.encode() if token_id in literal else piece_bytes(text) for token_id, text in enumerate(texts)
    )


def piece_bytes(text: str) -> bytes:
    """What a piece stands for."""
    if byte := _BYTE.fullmatch(text):
        return bytes([int(byte[1], 16)])
    return text.replace(BLANK, " ").encode()
