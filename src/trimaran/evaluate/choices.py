"""Questions with a right answer among several, asked by how likely the model finds each answer."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimaran.base.errors import ConfigError
from trimaran.evaluate.play import Job, play
from trimaran.evaluate.scripts import Likelihood, likelihoods
from trimaran.evaluate.sequences import Sequences
from trimaran.text.tokenizer import Tokenizer

MOST_ITEMS = 1_000_000
MOST_OPTIONS = 64


@dataclass(frozen=True)
class Choice:
    """``context`` and then one of ``options``, of which number ``right`` is right; ``group`` is what it is reported
    under. ``normalised``: likelihoods count per byte of their option, for options that differ in length."""

    group: str
    context: str
    options: tuple[str, ...]
    right: int
    normalised: bool = False


@dataclass(frozen=True)
class Question:
    """A choice in tokens. The score of an option is its log-likelihood over its weight."""

    group: str
    context: tuple[int, ...]
    options: tuple[tuple[int, ...], ...]
    weights: tuple[int, ...]
    right: int

    @property
    def length(self) -> int:
        """Most tokens that stand in the cache at once."""
        return len(self.context) + max(map(len, self.options))


@dataclass(frozen=True)
class Answer:
    """``right``: the right option scored highest. ``recited``: greedy decoding would give it word by word."""

    right: bool
    recited: bool


def to_question(choice: Choice, tokenizer: Tokenizer) -> Question:
    """No token spans the border of context and option, so that all options continue the same tokens.

    Raises ``ConfigError`` for a part that the vocabulary has no tokens for.
    """
    start = tokenizer.encode_prompt("")  # BOS, where the model expects one
    plain = tokenizer.encode(choice.context)
    options = tuple(tuple(tokenizer.encode_segments([choice.context, each])[len(plain) :]) for each in choice.options)
    if not (start or plain) or not all(options):
        part = choice.options[options.index(())] if plain else choice.context
        raise ConfigError(f"{choice.group}: {part!r:.50} has no tokens in this model's vocabulary")
    weights = tuple(len(each.encode()) if choice.normalised else 1 for each in choice.options)
    return Question(choice.group, (*start, *plain), options, weights, choice.right)


def ask(
    sequences: Sequences, questions: Sequence[Question], progress: Callable[[int], None] = lambda _: None
) -> list[Answer]:
    """The model's answers, in order; ``progress`` hears how many there are."""
    found: dict[int, Answer] = {}
    jobs = (Job(each.length, likelihoods(each.context, each.options)) for each in questions)
    for number, likely in play(sequences, jobs):
        found[number] = judge(questions[number], likely)
        progress(len(found))
    return [found[number] for number in range(len(questions))]


def judge(question: Question, likely: Sequence[Likelihood]) -> Answer:
    """An answer is right when its score is above all others': not when it is as good as another, or no number."""
    scores = [each.total / weight for each, weight in zip(likely, question.weights, strict=True)]
    best = scores.pop(question.right)
    return Answer(all(best > other for other in scores), likely[question.right].greedy)


def read_choices(path: Path, group: str | None = None) -> list[Choice]:
    """JSON objects, one a line: ``context``, ``options``, ``answer`` (a number from 0) and perhaps ``normalised``.

    Raises ``ConfigError`` with the line that is wrong.
    """
    return list(_choices(path, group or path.stem))


def _choices(path: Path, group: str) -> Iterator[Choice]:
    for where, item in read_lines(path):
        context, options, answer = item.get("context"), item.get("options"), item.get("answer")
        if not isinstance(context, str) or not context:
            raise ConfigError(f"{where}: context must be a text that is not empty")
        if (
            not isinstance(options, list)
            or not 2 <= len(options) <= MOST_OPTIONS
            or not all(isinstance(option, str) and option for option in options)
        ):
            raise ConfigError(f"{where}: options must be 2 to {MOST_OPTIONS} texts that are not empty")
        if type(answer) is not int or not 0 <= answer < len(options):
            raise ConfigError(f"{where}: answer must be a number from 0 to {len(options) - 1}, not {answer!r}")
        normalised = item.get("normalised", False)
        if not isinstance(normalised, bool):
            raise ConfigError(f"{where}: normalised must be true or false, not {normalised!r}")
        yield Choice(group, context, tuple(options), answer, normalised)


def read_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The JSON objects of a file, one a line, and where each stands; raises ``ConfigError``."""
    try:
        lines: Iterable[str] = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        if number > MOST_ITEMS:
            raise ConfigError(f"{path} has more than {MOST_ITEMS} lines")
        try:
            item = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"{where} is not JSON: {error}") from error
        if not isinstance(item, dict):
            raise ConfigError(f"{where} must be a JSON object")
        yield where, item
