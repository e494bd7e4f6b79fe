"""Pages in and out of a live engine, each checked right before it is read or written.

Whoever transfers pages names them by reference, and under a lease that is still open. So a copy that comes too late,
after the lease has ended and the page may have become somebody else's, is refused before a byte moves; one that would
reach a page of another sequence, which no late copy can but a bug of ours might, is a page fault like any other.
"""

from collections.abc import Sequence as Items

import numpy as np

from trimaran.base.errors import PageIntegrityError, TransferError
from trimaran.base.formats import KVFormat
from trimaran.engine.faults import PageFaults
from trimaran.engine.group import PageGroup
from trimaran.engine.leases import Leases
from trimaran.engine.pages import PageRef, PageState
from trimaran.kernels.step import Executor, Int32, UInt8


class Handover:
    """``Executor.export_pages`` and ``import_pages`` for pages under a lease, or of a sequence that runs. Works between
    two steps."""

    def __init__(self, executor: Executor, groups: Items[PageGroup], leases: Leases, faults: PageFaults) -> None:
        self._executor = executor
        self._groups = groups
        self._leases = leases
        self._faults = faults

    def give(
        self, lease: str, group: int, refs: Items[PageRef], page_format: KVFormat, out: UInt8 | None = None
    ) -> UInt8:
        """What pages of cache group number ``group`` hold, in ``page_format``: uint8 ``[n, bytes]``, in ``out`` if it
        is given.

        Raises ``TransferError`` when the lease has ended or does not have them, ``PageIntegrityError`` when one of
        them has changed hands all the same.
        """
        self._check(lease, group, refs)
        return self._executor.export_pages(group, _numbers(refs), page_format, out)

    def copy_out(
        self, sequence: str, group: int, refs: Items[PageRef], page_format: KVFormat, out: UInt8 | None = None
    ) -> UInt8:
        """As ``give``, of pages that the sequence of this name holds, and no lease. Raises ``PageIntegrityError``."""
        self._require_held(sequence, group, refs)
        return self._executor.export_pages(group, _numbers(refs), page_format, out)

    def take(self, lease: str, group: int, refs: Items[PageRef], owner: int, data: UInt8) -> None:
        """Fills pages that the sequence whose number is ``owner`` has and has not filled: all of them or none.

        Raises as ``give`` does, ``PageIntegrityError`` also for a page that is sealed or somebody else's.
        """
        self._check(lease, group, refs)
        pool = self._groups[group].pool
        for ref in refs:
            found = int(pool.owner_numbers[ref.page])
            if pool.state(ref.page) is not PageState.WRITING or found != owner:
                self._refuse(lease, group, ref, "owner", owner, found)
        self._executor.import_pages(group, _numbers(refs), data)

    def _check(self, lease: str, group: int, refs: Items[PageRef]) -> None:
        kept = self._leases.pages_of(lease)
        if kept is None:
            raise TransferError(f"no lease called {lease!r} is open: it has ended, or there was none")
        if not 0 <= group < len(kept):
            raise TransferError(f"cache group {group} is not one of the {len(kept)} of this model")
        if other := set(refs) - set(kept[group]):
            raise TransferError(f"page {min(other).page} of cache group {group} is not under the lease {lease!r}")
        self._require_held(lease, group, refs)

    def _require_held(self, holder: str, group: int, refs: Items[PageRef]) -> None:
        pool = self._groups[group].pool
        for ref in refs:
            if not pool.held(ref):
                self._refuse(holder, group, ref, "tag", ref.tag, int(pool.tags[ref.page]))

    def _refuse(self, holder: str, group: int, ref: PageRef, kind: str, expected: int, found: int) -> None:
        self._faults.note_transfer(holder, group, ref, kind, expected, found)
        raise PageIntegrityError(f"page {ref.page} of cache group {group} is not {holder}'s; nothing was copied")


def _numbers(refs: Items[PageRef]) -> Int32:
    return np.array([ref.page for ref in refs], np.int32)
