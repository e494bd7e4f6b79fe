"""Who holds each page, and the check before every step that the page tables still say so.

Beside a group's pages lies a tag for each, which changes whenever the page is handed out or freed (0: free), and a
number for its owner: the sequence that fills it, or the prefix that it holds once it is full. With every entry of a
page table stands what was true when it was made. The owner's number there is mixed with that of the sequence whose row
it is (by exclusive or, so that its own pages have 0): no entry is right in another's row.

Before a step reads or writes a page, the two are compared. An entry that has become stale, or was never right, leads to
the null page, and so does all else of its sequence.
"""

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from trimaran.kernels.step import StepInputs

Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]


class PageTags(NamedTuple):
    """Of all pages of a group ``[pages]``, or of all entries of its page table ``[max sequences, max pages]``, whose
    owners are mixed with their readers."""

    tags: Int64
    owners: UInt64

    @classmethod
    def of(cls, *shape: int) -> "PageTags":
        """Nobody's pages."""
        return cls(np.zeros(shape, np.int64), np.zeros(shape, np.uint64))


def owner_number(owner: str | bytes) -> int:
    """64 bits that stand for a sequence's id or a prefix key (SHA-256, whose first bytes they are)."""
    return int.from_bytes(owner[:8] if isinstance(owner, bytes) else _hash(owner), "little")


@dataclass(frozen=True)
class PageFault:
    """An entry of a page table that is not what it was made for. ``sequence`` counts in the step."""

    sequence: int
    group: int
    index: int  # of the page in the sequence
    page: int
    kind: Literal["bounds", "tag", "owner"]
    expected: int  # tag or owner; of a page out of bounds the tag
    found: int


def find_faults(
    step: "StepInputs", held: tuple[PageTags, ...], windows: tuple[int | None, ...], page_size: int
) -> list[PageFault]:
    """All entries that the step would read or write and that are faulty; ``held`` are the groups' pages."""
    assert step.expected is not None
    assert step.readers is not None
    faults = []
    ends = step.contexts + np.diff(step.starts)
    for group, (table, expected, pages, window) in enumerate(
        zip(step.page_tables, step.expected, held, windows, strict=True)
    ):
        for i, (slot, context, end) in enumerate(zip(step.slots, step.contexts, ends, strict=True)):
            first = 0 if window is None else max(0, int(context) - window + 1) // page_size
            for index in range(first, -(-int(end) // page_size)):
                page = int(table[slot, index])
                tag, owner = int(expected.tags[slot, index]), int(expected.owners[slot, index] ^ step.readers[i])
                if index >= context // page_size:  # it is written to
                    owner = int(step.readers[i])
                if not 0 < page < len(pages.tags):
                    faults.append(PageFault(i, group, index, page, "bounds", tag, 0))
                elif (found := int(pages.tags[page])) != tag or tag == 0:
                    faults.append(PageFault(i, group, index, page, "tag", tag, found))
                elif (found := int(pages.owners[page])) != owner:
                    faults.append(PageFault(i, group, index, page, "owner", owner, found))
    return faults


def without(step: "StepInputs", sequences: tuple[int, ...]) -> "StepInputs":
    """The step with page tables in which those sequences have the null page alone."""
    if not sequences:
        return step
    tables = []
    for table in step.page_tables:
        copy = table.copy()
        copy[step.slots[list(sequences)]] = 0
        tables.append(copy)
    return replace(step, page_tables=tuple(tables))


class PageGuard:
    """The check of an executor that is written in Python. ``tags`` is None where there is none."""

    def __init__(self, num_pages: tuple[int, ...], windows: tuple[int | None, ...], page_size: int, on: bool) -> None:
        self.tags = tuple(PageTags.of(pages) for pages in num_pages) if on else None
        self._windows = windows
        self._page_size = page_size

    def admit(self, step: "StepInputs") -> tuple["StepInputs", tuple[int, ...]]:
        """The step as it may run, and the sequences that were taken out; raises ``ValueError`` as executors do."""
        check_expected(step, self.tags)
        if self.tags is None:
            return step, ()
        faults = find_faults(step, self.tags, self._windows, self._page_size)
        faulty = tuple(sorted({fault.sequence for fault in faults}))
        return without(step, faulty), faulty


def check_expected(step: "StepInputs", tags: tuple[PageTags, ...] | None) -> None:
    """Raises ``ValueError`` when a step expects what no tags can tell, or expects nothing though there are tags."""
    if {step.expected is None, step.readers is None} != {tags is None}:
        raise ValueError("invalid step: it must say what it expects of pages if, and only if, they have tags")


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
