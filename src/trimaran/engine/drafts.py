"""Speculation by prompt lookup: what followed the last tokens when they came before is taken for a draft of the next.

A draft's tokens are computed in one step with the token before them, each to a row of logits of its own. As long as
the token that a row gives is the draft's, the next row is what a step of its own would have computed, bit for bit,
since rows do not depend on their company; the rest is thrown away. So the answer is the same with drafts or without.
Rows that are thrown away have written pages behind what is computed, where the next step writes again.

Texts that repeat themselves gain by it (code that is edited, JSON, quotations); elsewhere drafts are wrong, and cost a
step rows for nothing. So a sequence whose drafts fail drafts less, then rests.
"""

from array import array

LENGTHS = (3, 2)  # tokens that must have come before, the longer first
REST = 32  # tokens for which a sequence whose drafts fail drafts nothing
LEAST = 0.25  # of the tokens drafted lately that must have been right
MEMORY = 0.8  # weight of what was before each draft in "lately"


class Drafter:
    """Drafts for one sequence. All in all a token costs a lookup and an entry for each of ``LENGTHS``."""

    def __init__(self, most: int) -> None:
        """``most`` tokens make a draft."""
        self.most = most
        self._width = most
        self._after: list[dict[tuple[int, ...], int]] = [{} for _ in LENGTHS]  # what came before: where it went on
        self._read = 0  # tokens whose beginnings are in there
        self._right, self._drafted = 1.0, 1.0  # lately
        self._rest = 0

    def draft(self, tokens: "array[int]", most: int) -> tuple[int, ...]:
        """At most ``most`` tokens to follow ``tokens``; none where they would be guessed."""
        place = self._look_up(tokens)
        if place is None or len(tokens) < self._rest:
            return ()
        return tuple(tokens[place : place + min(self._width, most)])

    def judge(self, drafted: int, right: int, total: int) -> None:
        """Of a draft's ``drafted`` tokens the first ``right`` were; the sequence has ``total`` tokens now."""
        self._drafted = self._drafted * MEMORY + drafted
        self._right = self._right * MEMORY + right
        self._width = min(self.most, 2 * self._width if right == drafted else right + 1)
        if self._right < LEAST * self._drafted:
            self._rest = total + REST
            self._right, self._drafted = 1.0, 1.0

    def _look_up(self, tokens: "array[int]") -> int | None:
        """Where the tokens go on that the last ones have come before; takes note of those that are new."""
        total = len(tokens)
        for end in range(max(self._read, min(LENGTHS)), total):  # before the last one: that it goes on is not known yet
            for length, after in zip(LENGTHS, self._after, strict=True):
                if end >= length:
                    after[tuple(tokens[end - length : end])] = end
        self._read = total
        for length, after in zip(LENGTHS, self._after, strict=True):
            if total >= length and (place := after.get(tuple(tokens[total - length :]))) is not None:
                return place
        return None
