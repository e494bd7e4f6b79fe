"""Speculation by prompt lookup: what followed the last tokens when they came before is taken for a draft of the next.

A draft's tokens are computed in one step with the token before them, each to a row of logits of its own. As long as
the token that a row gives is the draft's, the next row is what a step of its own would have computed, bit for bit,
since rows do not depend on their company; the rest is thrown away. So the answer is the same with drafts or without.
Rows that are thrown away have written pages behind what is computed, where the next step writes again.

Texts that repeat themselves gain by it (code that is edited, JSON, quotations); elsewhere drafts are wrong, and cost a
step rows for nothing. A right token saves its share of what a step costs besides its rows, which is the less the more
sequences share it; a wrong one costs a row. So it is kept account of how often drafts are right, by how many tokens
came before as they came now: three that did say little, eight nearly all.
"""

from array import array
from dataclasses import dataclass
from math import log

import numpy as np

ALIKE = 3  # tokens that must have come before
REST, LONGEST_REST = 32, 512  # tokens for which drafts that fail are not tried: at first, and in the end
# Rows that cost what a step costs besides its rows, mostly reading weights: three or four of a small model, more of a
# large one. Less is assumed, as what barely pays is not worth the risk.
STEP = 2
MEMORY = 0.8  # weight of what was before each draft in "lately"
BITS = 21  # of a token's id: three fit a number of 64 bits
MANY = 32  # tokens that are read faster all at once
LONG = 8  # tokens: to have more alike says no more


@dataclass(slots=True)
class _Trust:
    """How drafts of some kind did lately: tokens that were right, and drafts that were wrong at last."""

    right: float
    wrong: float
    rest: int = REST  # tokens of the next rest
    until: int = 0  # of the sequence, when the last rest ends

    def judge(self, drafted: int, right: int) -> None:
        self.right = self.right * MEMORY + right
        self.wrong = self.wrong * MEMORY + (right < drafted)
        if right == drafted:
            self.rest = REST

    def width(self, least: float) -> int:
        """Tokens of a draft the last of which is right with odds of at least ``least``: as all before it must be."""
        one = self.right / (self.right + self.wrong)
        return int(log(least) / log(min(max(one, 0.01), 0.99)))


def _first_trust(alike: int) -> _Trust:
    """Before any was tried, of drafts behind so many tokens alike: ``bench/speculation.py`` has them about as right."""
    if alike >= LONG:
        return _Trust(1.9, 0.1)
    return _Trust(1.3, 0.7) if alike >= LONG // 2 else _Trust(0.8, 1.2)


class Drafter:
    """Drafts for one sequence. All in all a token costs a lookup and an entry."""

    def __init__(self, most: int) -> None:
        """``most`` tokens make a draft."""
        self.most = most
        self._after: dict[int, int] = {}  # what came before: where it went on
        self._read = 0  # tokens whose beginnings are in there
        self._trusts = {alike: _first_trust(alike) for alike in (LONG, LONG // 2, 0)}  # by tokens alike, at least
        self._last = 0  # the kind of the last draft

    def draft(self, tokens: "array[int]", most: int, least: float) -> tuple[int, ...]:
        """At most ``most`` tokens to follow ``tokens``; none where they would be guessed, or where lately less than the
        share ``least`` of their like was right."""
        place = self._look_up(tokens)
        if place is None:
            return ()
        total, alike = len(tokens), _alike(tokens, place)
        self._last = LONG if alike >= LONG else LONG // 2 if alike >= LONG // 2 else 0
        trust = self._trusts[self._last]
        if total < trust.until:
            return ()
        width = min(trust.width(least), self.most, most)
        if width == 0:
            new = _first_trust(alike)
            if new.width(least):  # it was more at first: try again later
                new.rest, new.until = min(2 * trust.rest, LONGEST_REST), total + trust.rest
                self._trusts[self._last] = new
            return ()
        return tuple(tokens[place : place + width])

    def judge(self, drafted: int, right: int) -> None:
        """Of the last draft's ``drafted`` tokens the first ``right`` were."""
        self._trusts[self._last].judge(drafted, right)

    def _look_up(self, tokens: "array[int]") -> int | None:
        """Where the tokens go on that the last ones have come before; takes note of those that are new."""
        total, read, after = len(tokens), self._read, self._after
        if total - read > MANY:
            self._read_many(tokens, read)
        else:
            for end in range(max(read, ALIKE), total):  # before the last one: that it goes on is not known yet
                after[_key(tokens, end)] = end
        self._read = total
        return after.get(_key(tokens, total)) if total >= ALIKE else None

    def _read_many(self, tokens: "array[int]", read: int) -> None:
        """A prompt may be long, and all that run wait for this."""
        first = max(0, read - ALIKE)
        ids = np.array(tokens[first:-1], np.int64)
        keys = ids[:-2] << 2 * BITS | ids[1:-1] << BITS | ids[2:]
        self._after.update(zip(keys.tolist(), range(first + ALIKE, len(tokens)), strict=True))


def least_right(sequences: int) -> float:
    """The share of drafted tokens that must be right for drafts to pay in a step of so many sequences."""
    return sequences / (sequences + STEP)


def _alike(tokens: "array[int]", place: int) -> int:
    """How many tokens before ``place`` are those at the end, up to ``LONG``."""
    total, count = len(tokens), ALIKE
    while count < LONG and count < place and tokens[place - 1 - count] == tokens[total - 1 - count]:
        count += 1
    return count


def _key(tokens: "array[int]", end: int) -> int:
    """A number for the ``ALIKE`` tokens before ``end``. If ids were larger than any vocabulary has them, it would stand
    for others too, and drafts would be wrong more often."""
    return tokens[end - 3] << 2 * BITS | tokens[end - 2] << BITS | tokens[end - 1]
