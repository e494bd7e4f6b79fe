"""What a constraint of one's own has to do: a state machine over tokens, asked for all requests of a step at once.

A package offers one by an entry point of the group ``trimaran.constraints``, whose object takes a ``Vocabulary`` and
returns a ``TokenConstraint``. Requests name the entry point. ``docs/structured-output.md`` has an example.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

ENTRY_POINTS = "trimaran.constraints"
S = TypeVar("S")


@dataclass(frozen=True)
class Vocabulary:
    """The model's tokens: the bytes of each, ``b""`` for those that are no text, and those that end an answer."""

    tokens: Sequence[bytes]
    eos_ids: frozenset[int]

    @property
    def words(self) -> int:
        """32-bit words in a mask."""
        return -(-len(self.tokens) // 32)


class TokenConstraint(Protocol[S]):
    """States are values of any type that the constraint does not change: a request keeps its own, also while it has
    given up its pages. An exception ends the requests that it concerns, and no other.
    """

    def start(self, prompt: Sequence[int], argument: Any) -> S:
        """The state before the first token. ``argument`` is JSON from the request; ``ValueError`` refuses it with 400.

        Called on a thread of its own, beside the other methods.
        """
        ...

    def advance(self, states: Sequence[S], tokens: Sequence[int]) -> Sequence[S | None]:
        """The states after one more token each; None where the answer is complete."""
        ...

    def mask(self, states: Sequence[S]) -> npt.NDArray[np.uint32]:
        """The tokens that may come next, ``[states, words]``: bit ``i % 32`` of word ``i // 32`` is token ``i``.

        One at least, for every state. An end-of-text token ends the answer, so it is for the constraint to allow it.
        """
        ...
