"""What becomes of pages that turned out not to be what a sequence expected.

The sequence ends. Of the pages in question, those that a healthy sequence holds stay with it. Others, and those
that the sequence had lost, are quarantined: nobody can say who else believes to hold them.
"""

import logging
from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Items

from trimaran.base.errors import EngineDiedError
from trimaran.engine.group import PageGroup
from trimaran.engine.pages import PageRef
from trimaran.engine.sequence import Sequence
from trimaran.kernels.page_tags import PageFault

log = logging.getLogger(__name__)

Doubtful = set[tuple[int, int]]  # group and page


class PageFaults:
    """Counts and logs faults of all cache groups, and takes pages out of use. Works between two steps."""

    def __init__(self, groups: Items[PageGroup]) -> None:
        self._groups = groups
        self.count = 0

    def note(self, sequence: Sequence, faults: Iterable[PageFault]) -> Doubtful:
        """The pages that the faults of ``sequence``, which still holds its pages, cast doubt on."""
        doubtful: Doubtful = set()
        for fault in faults:
            self._count(
                "request=%s group=%d index=%d page=%d kind=%s expected=%d found=%d",
                sequence.id, fault.group, fault.index, fault.page, fault.kind, fault.expected, fault.found,
            )  # fmt: skip
            pool, held = self._groups[fault.group].pool, sequence.pages[fault.group]
            ref = held.refs[fault.index - held.first]
            good = pool.held(ref)
            if not good:
                doubtful.add((fault.group, ref.page))
            if 0 < fault.page <= pool.total and not (good and fault.page == ref.page):
                doubtful.add((fault.group, fault.page))
        return doubtful

    def note_transfer(self, holder: str, group: int, ref: PageRef, kind: str, expected: int, found: int) -> None:
        """A copy was kept from a page that is not its ``holder``'s, a lease or a sequence; it stays with who has it."""
        self._count(
            "holder=%s group=%d page=%d kind=copy-%s expected=%d found=%d",
            holder, group, ref.page, kind, expected, found,
        )  # fmt: skip

    def lost(self) -> Doubtful:
        """The pages of references that were no good any more when they were given back, since the last call."""
        doubtful: Doubtful = set()
        for number, group in enumerate(self._groups):
            for ref in group.lost:
                self._count("group=%d page=%d kind=release expected=%d", number, ref.page, ref.tag)
                doubtful.add((number, ref.page))
            group.lost.clear()
        return doubtful

    def quarantine(
        self, doubtful: Doubtful, healthy: Iterable[Sequence], leased: Iterable[tuple[int, PageRef]] = ()
    ) -> None:
        """Takes those pages out of use that none of the ``healthy`` sequences holds and that no lease keeps (``leased``
        are group and reference); of the others, the holders are counted anew.

        Raises ``EngineDiedError`` once what is left has no room for one full sequence: it could wait for ever.
        """
        held = [
            (number, ref) for sequence in healthy for number, pages in enumerate(sequence.pages) for ref in pages.refs
        ]
        holders = Counter(
            (number, ref.page)
            for number, ref in (*held, *leased)
            if self._groups[number].pool.tags[ref.page] == ref.tag  # it is used still, whatever was counted
        )
        for number, page in doubtful:
            if count := holders[number, page]:
                self._groups[number].pool.recount(page, count)
            else:
                self._groups[number].pool.quarantine(page)
        for group in self._groups:
            pool = group.pool
            if pool.total - pool.quarantined < group.most:
                raise EngineDiedError(
                    f"{pool.quarantined} of {pool.total} pages are out of use after page faults, and a full sequence "
                    "has no room any more: the engine ends, to be started anew"
                )

    def _count(self, text: str, *values: object) -> None:
        self.count += 1
        log.error("page fault: " + text, *values)
