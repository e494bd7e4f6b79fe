"""A needle in a haystack: facts hidden in a long text of no interest, one of which is asked for at its end.

The text is made of sentences from a few words, by a generator of its own, so that every run and every model meets the
same. All facts are alike but for a town and a word: three of them are there to be mistaken for the fourth, which is
what a cache that is too coarse does first.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from trimaran.evaluate.choices import Choice, Question, to_question
from trimaran.text.tokenizer import Tokenizer

LENGTHS = (256, 512, 1024, 2000)  # tokens, question included
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)  # where the needle is: 0 at the beginning
REPEATS = 2
TOWNS = ("Oslo", "Lima", "Cairo", "Dublin", "Nairobi", "Prague", "Quito", "Hanoi")
WORDS = ("copper", "violet", "harbor", "lantern", "meadow", "silver", "timber", "walnut")
_WHO = ("The baker", "A young clerk", "The old captain", "Our neighbor", "The teacher", "A tired farmer", "The painter")
_DID = ("carried", "sold", "found", "counted", "repaired", "borrowed", "painted", "described")
_WHAT = (
    "two wooden chairs",
    "a basket of apples",
    "the broken clock",
    "some letters",
    "a small boat",
    "nine blue cups",
)
_WHERE = ("near the bridge", "behind the station", "in the market", "by the river", "on the hill", "at the old mill")
_WHEN = ("before breakfast", "on Tuesday", "during the storm", "in early spring", "after the concert", "last winter")


@dataclass(frozen=True)
class Needle:
    """A question, and where in the text its answer is."""

    length: int
    depth: float
    question: Question


def needles(tokenizer: Tokenizer, context: int) -> list[Needle]:
    """``REPEATS`` needles at each of ``DEPTHS`` in texts of each of ``LENGTHS`` that the model's context holds."""
    rng = random.Random(0)
    return [
        Needle(length, depth, _question(tokenizer, length, depth, rng))
        for length in LENGTHS
        if length <= context
        for depth in DEPTHS
        for _ in range(REPEATS)
    ]


def _question(tokenizer: Tokenizer, length: int, depth: float, rng: random.Random) -> Question:
    """As many sentences as fit into ``length`` tokens, found by halving."""
    towns, words = rng.sample(TOWNS, 4), rng.sample(WORDS, 4)
    hay = list(_sentences(rng, length // 8))
    fewest, most = 0, len(hay)
    while fewest < most:
        middle = (fewest + most + 1) // 2
        fits = to_question(_choice(hay[:middle], depth, towns, words), tokenizer).length <= length
        fewest, most = (middle, most) if fits else (fewest, middle - 1)
    return to_question(_choice(hay[:fewest], depth, towns, words), tokenizer)


def _sentences(rng: random.Random, count: int) -> Iterator[str]:
    for _ in range(count):
        yield f"{rng.choice(_WHO)} {rng.choice(_DID)} {rng.choice(_WHAT)} {rng.choice(_WHERE)} {rng.choice(_WHEN)}."


def _choice(hay: list[str], depth: float, towns: list[str], words: list[str]) -> Choice:
    facts = [f"The secret word of {town} is {word}." for town, word in zip(towns, words, strict=True)]
    text = list(hay)
    text.insert(round(depth * len(hay)), facts[0])
    for number, fact in enumerate(facts[1:], 1):
        text.insert(round((depth + number / 4) % 1 * len(text)), fact)
    context = (
        f"{' '.join(text)}\nQuestion: What is the secret word of {towns[0]}?\nAnswer: The secret word of {towns[0]} is"
    )
    return Choice("needle", context, tuple(f" {word}" for word in words), right=0)
