"""The tokenizer of an encoder: a text to the ids that the model reads, with the control tokens that frame it.

``tokenizer.json`` is taken as it stands, whatever its kind of vocabulary: nothing is ever decoded.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
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
            return self._ids(texts, framed=True)
        frame = self._alone
        room = frame.room(longest)
        return [[*frame.before, *ids[:room], *frame.after] for ids in self._ids(texts, framed=False)]

    def encode_pairs(self, pairs: Sequence[tuple[str, str]], longest: int | None = None) -> Iterator[Pair]:
        """Each pair as its model was trained to read one, made when it is asked for: a text that is too long may stand
        in every pair. Where ``longest`` asks for it, the longer text of a pair is cut at its end, then both. Raises as
        ``encode`` does."""
        frame = self._paired
        room = None if longest is None else frame.room(longest)
        texts = list(dict.fromkeys(text for pair in pairs for text in pair))
        known = dict(zip(texts, self._ids(texts, framed=False), strict=True))
        for first, second in pairs:
            one, other = known[first], known[second]
            if room is not None:
                kept = _kept(len(one), len(other), room)
                one, other = one[: kept[0]], other[: kept[1]]
            ids = [*frame.before, *one, *frame.between, *other, *frame.after]
            yield Pair(ids, len(frame.before) + len(one) + frame.of_first)

    def require_pairs(self) -> None:
        """Raises ``CheckpointError`` when this tokenizer does not tell the second text of a pair from the first."""
        self._paired  # noqa: B018, what it is made of is checked

    @cached_property
    def _alone(self) -> "_Frame":
        return _frame(self._core.encode("a"))

    @cached_property
    def _paired(self) -> "_Frame":
        sample = self._core.encode("a", "b")
        if 1 not in sample.type_ids or sample.type_ids != sorted(sample.type_ids) or 1 not in sample.sequence_ids:
            why = "tokenizer.json does not say how a pair of texts is read: its tokens have no types"
            raise CheckpointError(why)
        return _frame(sample)

    def _ids(self, texts: Sequence[str], *, framed: bool) -> list[list[int]]:
        try:
            return [each.ids for each in self._core.encode_batch_fast(list(texts), add_special_tokens=framed)]
        except TypeError:
            raise RequestError("a text holds half of a surrogate pair (U+D800 to U+DFFF)", param="input") from None


@dataclass(frozen=True)
class _Frame:
    """The control tokens around a text, or around and between two; the first ``of_first`` of these are the first's."""

    before: list[int]
    between: list[int]
    after: list[int]
    of_first: int

    def room(self, longest: int) -> int:
        """Tokens of text among ``longest``; raises ``RequestError`` when that is none."""
        control = len(self.before) + len(self.between) + len(self.after)
        if longest <= control:
            why = f"truncate_prompt_tokens leaves no room: there are {control} control tokens"
            raise RequestError(why, param="truncate_prompt_tokens")
        return longest - control


def _frame(sample: tokenizers.Encoding) -> _Frame:
    """What stands in ``sample`` beside its text or two."""
    ids, types, owners = sample.ids, sample.type_ids, sample.sequence_ids
    places = [[at for at, owner in enumerate(owners) if owner == text] for text in (0, 1)]
    first, second = places[0], places[1] or places[0]
    if not first:
        raise CheckpointError("tokenizer.json makes no token of the text 'a'")
    between = range(first[-1] + 1, max(second[0], first[-1] + 1))
    of_first = sum(types[at] == 0 for at in between)
    return _Frame(ids[: first[0]], [ids[at] for at in between], ids[second[-1] + 1 :], of_first)


def _kept(first: int, second: int, room: int) -> tuple[int, int]:
    """How many of their tokens two texts keep where both together may have ``room``: as transformers has it."""
    shorter = min(first, second, room // 2)
    longer = min(max(first, second), room - shorter)
    return (shorter, longer) if first <= second else (longer, shorter)
