"""The tokens that a request has seen, kept so that penalties cost no more than the number of different ones."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]


class History:
    """Distinct tokens of prompt and output, and how often each occurs in the output."""

    def __init__(self, prompt: Iterable[int]) -> None:
        self._places = {token: place for place, token in enumerate(dict.fromkeys(prompt))}
        self._ids = np.fromiter(self._places, np.intp, len(self._places))
        self._counts = np.zeros(len(self._ids), np.float32)

    def add(self, token: int) -> None:
        """Counts a token of the output."""
        place = self._places.setdefault(token, len(self._places))
        if place == len(self._ids):
            spare = max(64, place)
            self._ids = np.concatenate([self._ids, np.zeros(spare, np.intp)])
            self._counts = np.concatenate([self._counts, np.zeros(spare, np.float32)])
        self._ids[place] = token
        self._counts[place] += 1

    def penalise(self, scores: Float32, repetition: float, presence: float, frequency: float) -> None:
        """Lowers the scores of seen tokens in place.

        ``repetition`` divides positive and multiplies negative scores of all seen tokens (Keskar et al. 2019, CTRL);
        ``presence`` and ``frequency`` are subtracted for tokens of the output, once and per occurrence (OpenAI API).
        """
        ids, counts = self._ids[: len(self._places)], self._counts[: len(self._places)]
        seen = scores[ids]
        with np.errstate(over="ignore"):  # the caller sees infinities
            seen = np.where(seen > 0, seen / np.float32(repetition), seen * np.float32(repetition))
        scores[ids] = seen - np.float32(presence) * (counts > 0) - np.float32(frequency) * counts
