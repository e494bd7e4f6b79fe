"""Where a request stands in what constrains it, and what a kind of constraint does for all requests of a step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from trimaran.base.errors import TrimaranError

UInt32 = npt.NDArray[np.uint32]
NO_MASKS: UInt32 = np.zeros((0, 0), np.uint32)


class Kind(Protocol):
    """Advances and masks matchers, all of a step in one call. It raises nothing: a matcher's ``error`` says what
    went wrong with it, and the others go on."""

    def advance(self, matchers: Sequence["Matcher"], tokens: Sequence[int]) -> None:
        """Each matcher's answer has one more token; those whose answer is complete are ``finished``."""
        ...

    def masks(self, matchers: Sequence["Matcher"], drafts: Sequence[tuple[int, ...]]) -> UInt32:
        """A row for each, and one more behind each token of its draft, ``[matchers and drafted, ceil(vocab / 32)]``,
        valid until the next call: bit ``i % 32`` of word ``i // 32`` lets token ``i`` come next. Matchers stay where
        they are. One for which its draft was too much has no ``drafts`` any more, and its rows of the draft are empty.
        """
        ...

    def forced(self, matcher: "Matcher", most: int) -> tuple[int, ...]:
        """A draft of what must come next, as far as it must; empty where much may. The text must, and so do the tokens
        but for the last, which might be one that goes on behind it."""
        ...

    def accepted(self, matcher: "Matcher", draft: tuple[int, ...]) -> tuple[int, ...]:
        """The beginning of ``draft`` that may come next."""
        ...

    def nothing_left(self) -> TrimaranError:
        """What to say of a matcher whose mask has turned out to allow no token."""
        ...


@dataclass(slots=True, eq=False)
class Matcher:
    """One request's place in its constraint. It moves with tokens that were committed, so that it outlives preemption;
    nothing else of the request enters."""

    kind: Kind
    state: Any  # belongs to ``kind``
    field: str  # where the client wrote the constraint
    drafts: bool = True  # whether drafts may be tried on it: it can be moved back
    finished: bool = False  # nothing can follow: the answer is complete
    error: TrimaranError | None = None
