"""How much accuracy one configuration loses against another on the same items, and how sure that is."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

Z = 1.645  # of the normal distribution 95 % lies below


@dataclass(frozen=True)
class Loss:
    """Accuracies are shares; ``points`` are percentage points lost, ``bound`` what they are at most with 95 % trust.

    The bound is one-sided and normal, on the difference of pairs: only items that exactly one of both answers rightly
    (``lost``, ``gained``) tell them apart, so it is several times closer than one of two independent samples. Half an
    item is added to each of the four cells of the table (Agresti and Min, "Simple improved confidence intervals for
    comparing matched proportions", 2005), so that a few items without any difference prove little.
    """

    items: int
    reference: float
    accuracy: float
    lost: int
    gained: int

    @property
    def points(self) -> float:
        return 100 * (self.lost - self.gained) / self.items

    @property
    def bound(self) -> float:
        n, lost, gained = self.items + 2, self.lost + 0.5, self.gained + 0.5
        difference = (lost - gained) / n
        return 100 * (difference + Z * sqrt(((lost + gained) / n - difference**2) / n))


def paired_loss(reference: Sequence[bool], ours: Sequence[bool]) -> Loss:
    """Of two lists of right answers to the same items, of which there is at least one."""
    pairs = list(zip(reference, ours, strict=True))
    return Loss(
        len(pairs),
        sum(reference) / len(pairs),
        sum(ours) / len(pairs),
        lost=sum(theirs and not mine for theirs, mine in pairs),
        gained=sum(mine and not theirs for theirs, mine in pairs),
    )
