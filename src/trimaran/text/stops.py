"""Finds the first of several stop strings in a text that arrives in pieces."""

from collections.abc import Sequence


class StopFinder:
    """Follows a text character by character with one Knuth-Morris-Pratt automaton for each stop string.

    The cost of a character does not depend on the length of the stops, and the answer not on how the text was cut.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._borders = [_borders(stop) for stop in stops]
        self._matched = [0] * len(stops)  # characters of each stop that the text ends with
        self._firsts = frozenset(stop[0] for stop in stops)

    @property
    def held(self) -> int:
        """How many characters at the text's end may be the beginning of a stop string."""
        return max(self._matched, default=0)

    def feed(self, text: str, armed: bool) -> tuple[int, str] | None:
        """Reads on; returns where in ``text`` a stop string ends, and which: the first to end, the longest of those.

        Stop strings that end here are passed over unless ``armed``. After a find, the finder is spent.
        """
        if not any(self._matched) and self._firsts.isdisjoint(text):
            return None
        for at, char in enumerate(text, 1):
            found = ""
            for which, stop in enumerate(self._stops):
                matched = self._advance(which, char)
                if matched == len(stop):
                    found = max(found, stop, key=len)
                    matched = self._borders[which][-1]
                self._matched[which] = matched
            if found and armed:
                return at, found
        return None

    def _advance(self, which: int, char: str) -> int:
        stop, borders, matched = self._stops[which], self._borders[which], self._matched[which]
        while matched and stop[matched] != char:
            matched = borders[matched - 1]
        return matched + (stop[matched] == char)


def _borders(word: str) -> list[int]:
    """For each prefix of ``word``, the length of its longest proper prefix that it also ends with."""
    borders = [0] * len(word)
    length = 0
    for at in range(1, len(word)):
        while length and word[at] != word[length]:
            length = borders[length - 1]
        length += word[at] == word[length]
        borders[at] = length
    return borders
