"""What is put to every configuration: prepared once, in tokens, so that all meet the same."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trimaran.base.errors import ConfigError
from trimaran.evaluate.choices import Choice, Question, read_choices, to_question
from trimaran.evaluate.datasets import fetch_choices
from trimaran.evaluate.divergence import Text
from trimaran.evaluate.needle import Needle, needles
from trimaran.evaluate.validity import MOST_TOKENS, Prompt, read_prompts
from trimaran.text.tokenizer import Tokenizer

SECTIONS = ("kl", "tasks", "needle", "validity", "code")
TEXTS = Path(__file__).parent / "texts"
CODE = Path(__file__).parent / "data" / "coding.jsonl"
TOKENS = 448  # of each text: what the goldens of ``bench/parity.py`` have
LEAST_TOKENS = 8  # of a text


@dataclass(frozen=True)
class Suite:
    """Sections that were not asked for are empty. ``left_out``: items that the model's context cannot hold."""

    texts: Sequence[Text] = ()
    tasks: Sequence[Question] = ()
    needles: Sequence[Needle] = ()
    prompts: Sequence[Prompt] = ()
    code: Sequence[Question] = ()
    left_out: int = 0
    longest: int = 0  # tokens


def prepare(
    tokenizer: Tokenizer,
    context: int,
    sections: Collection[str],
    *,
    texts: Sequence[Path] = (),
    tokens: int = TOKENS,
    data: Sequence[Path] = (),
    items: int | None = None,
    offline: bool = False,
) -> Suite:
    """``texts`` and ``data`` (as ``read_choices`` takes it) replace the committed texts and PIQA and BoolQ; ``items``
    are the most of each set, its first.

    Raises ``ConfigError`` for files that cannot be used, ``SourceError`` when PIQA and BoolQ cannot be fetched.
    """
    files = texts or sorted(TEXTS.glob("*.txt"))
    read = [_text(tokenizer, path, min(tokens, context)) for path in files] if "kl" in sections else []
    choices = _tasks(data, offline) if "tasks" in sections else []
    questions = [to_question(choice, tokenizer) for choice in _first(choices, items)]
    code = [to_question(choice, tokenizer) for choice in read_choices(CODE, "code")] if "code" in sections else []
    prompts = read_prompts() if "validity" in sections else []
    lengths = {prompt.text: len(tokenizer.encode(prompt.text)) + MOST_TOKENS + 1 for prompt in prompts}
    found = needles(tokenizer, context) if "needle" in sections else []
    kept = Suite(
        read,
        [each for each in questions if each.length <= context],
        found,
        [each for each in prompts if lengths[each.text] <= context],
        [each for each in code if each.length <= context],
    )
    left = len(kept.tasks) + len(kept.code) + len(kept.prompts)
    lost = len(questions) + len(code) + len(prompts) - left
    if not (left or kept.texts or kept.needles):
        raise ConfigError(f"nothing is left to measure: the model's context of {context} tokens holds no item")
    longest = max(
        [
            *(len(each.tokens) for each in kept.texts),
            *(each.length for each in (*kept.tasks, *kept.code)),
            *(each.question.length for each in kept.needles),
            *(lengths[each.text] for each in kept.prompts),
        ]
    )
    return replace(kept, left_out=lost, longest=longest)


def require_same_tokens(ours: Tokenizer, theirs: Tokenizer) -> None:
    """Raises ``ConfigError`` where two models cut text into other tokens: then nothing of them can be compared."""
    text = "".join(path.read_text("utf-8") for path in sorted(TEXTS.glob("*.txt")))
    if ours.vocab_size != theirs.vocab_size or ours.encode(text) != theirs.encode(text):
        raise ConfigError(
            "the model and the reference (--against) have different vocabularies, so they cannot be compared"
        )


def _text(tokenizer: Tokenizer, path: Path, most: int) -> Text:
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the text {path}: {error}") from error
    tokens = (tokenizer.encode_prompt("") + tokenizer.encode(text))[:most]
    if len(tokens) < LEAST_TOKENS:
        raise ConfigError(f"the text {path} has only {len(tokens)} tokens; {LEAST_TOKENS} are the least")
    return Text(path.stem, tokens)


def _tasks(data: Sequence[Path], offline: bool) -> list[Choice]:
    if not data:
        return fetch_choices(offline=offline)
    choices = [choice for path in data for choice in read_choices(path)]
    if not choices:
        raise ConfigError(f"--data {data[0]} has no items")
    return choices


def _first(choices: Sequence[Choice], items: int | None) -> list[Choice]:
    seen: dict[str, int] = {}
    kept = []
    for choice in choices:
        seen[choice.group] = seen.get(choice.group, 0) + 1
        if items is None or seen[choice.group] <= items:
            kept.append(choice)
    return kept
