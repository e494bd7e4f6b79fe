"""The tokenizer of an encoder: a text to the ids that the model reads, with the control tokens that frame it.

``tokenizer.json`` is taken as it stands, whatever its kind of vocabulary: nothing is ever decoded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tokenizers

from trimaran.base.errors import CheckpointError, RequestError
from trimaran.checkpoint import Checkpoint
from trimaran.checkpoint.json_file import Read

VECTORS = frozenset({"BertModel"})  # architectures that make a vector of a text
SCORES = frozenset({"BertForSequenceClassification"})  # those that make a score of a pair of texts


def is_encoder(checkpoint: Checkpoint) -> bool:
    """Whether a model makes vectors of texts, or scores of pairs, by what its files call its architecture."""
    return _architecture(checkpoint) in VECTORS | SCORES


def reads_pairs(checkpoint: Checkpoint) -> bool:
    """Whether it makes scores of pairs."""
    return _architecture(checkpoint) in SCORES


def _architecture(checkpoint: Checkpoint) -> object:
    names = checkpoint.metadata.get("architectures") if checkpoint.kind == "safetensors" else None
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else None


@dataclass(frozen=True)
class Pair:
    """What a model reads of two texts: one sequence of ids, in which the second text begins at ``second``."""

    ids: list[int]
    second: int


class EncoderTokenizer:
    """Texts to token ids. Safe to use from several threads."""

    def __init__(self, path: Path, read: Read = Path.read_bytes) -> None:
        """From a ``tokenizer.json``; raises ``CheckpointError`` when there is none, or a damaged one."""
        try:
            data = read(path)
        except OSError as error:
            raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
        try:
            core = tokenizers.Tokenizer.from_buffer(data)
        except BaseException as error:  # what the library raises is not typed, and where it panics no Exception
            if isinstance(error, Exception) or type(error).__name__ == "PanicException":
                raise CheckpointError(f"{path} cannot be read: {error}") from error
            raise
        core.no_truncation()  # a text that is cut without a word gives the vector of another one
        core.no_padding()
        core.encode_special_tokens = True  # control tokens in a text are text
        self._core = core

    def encode(self, texts: Sequence[str], longest: int | None = None) -> list[list[int]]:
        """Ids of each text, cut at its end to ``longest`` of them, control tokens included, if that is given.

        Raises ``RequestError`` when a text has half of a surrogate pair, or ``longest`` has no room for any.
        """
        if longest is None:
            return [each.ids for each in self._encoded(texts, framed=True)]
        room = self._room(longest, pair=False)
        ids = []
        for text in self._encoded(texts, framed=False):
            text.truncate(room)
            ids.append(self._core.post_process(text).ids)
        return ids

    def encode_pairs(self, pairs: Sequence[tuple[str, str]], longest: int | None = None) -> list[Pair]:
        """Each pair as its model was trained to read one. Where ``longest`` asks for it, the longer text of a pair is
        cut at its end, then both. Raises as ``encode`` does."""
        room = None if longest is None else self._room(longest, pair=True)
        texts = list(dict.fromkeys(text for pair in pairs for text in pair))
        known = dict(zip(texts, self._encoded(texts, framed=False), strict=True))
        return [self._pair(known[first], known[second], room) for first, second in pairs]

    def require_pairs(self) -> None:
        """Raises ``CheckpointError`` when this tokenizer does not tell the second text of a pair from the first."""
        types = self._core.encode("a", "b").type_ids
        if 1 not in types or types != sorted(types) or types[-1] != 1:
            raise CheckpointError(
                "tokenizer.json does not say how a pair of texts is read: types of tokens are missing"
            )

    def _pair(self, first: tokenizers.Encoding, second: tokenizers.Encoding, room: int | None) -> Pair:
        if room is not None and len(first) + len(second) > room:
            shorter = min(len(first), len(second), room // 2)
            kept = (shorter, room - shorter) if len(first) <= len(second) else (room - shorter, shorter)
            first, second = (_cut(text, tokens) for text, tokens in zip((first, second), kept, strict=True))
        whole = self._core.post_process(first, second)
        return Pair(whole.ids, whole.type_ids.index(1))

    def _room(self, longest: int, *, pair: bool) -> int:
        control = self._core.num_special_tokens_to_add(pair)
        if longest <= control:
            why = f"truncate_prompt_tokens leaves no room: there are {control} control tokens"
            raise RequestError(why, param="truncate_prompt_tokens")
        return longest - control

    def _encoded(self, texts: Sequence[str], *, framed: bool) -> list[tokenizers.Encoding]:
        try:
            return self._core.encode_batch_fast(list(texts), add_special_tokens=framed)
        except TypeError:
            raise RequestError("a text holds half of a surrogate pair (U+D800 to U+DFFF)", param="input") from None


def _cut(text: tokenizers.Encoding, tokens: int) -> tokenizers.Encoding:
    """A copy, cut: other pairs may share ``text``."""
    copy = tokenizers.Encoding.merge([text])
    copy.truncate(tokens)
    return copy
