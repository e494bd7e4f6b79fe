"""A sequence's pages from one executor to another, as when one prefills a prompt and another decodes its answer."""

from collections.abc import Sequence

import numpy as np

from trimaran.base.errors import TransferError
from trimaran.kernels.page_layout import PageLayout
from trimaran.kernels.step import Executor, Int32

BATCH_BYTES = 4 << 20  # is under way at once, whatever the length: what was exported is in cache still when imported


def first_page_read(window: int | None, position: int, page_size: int) -> int:
    """Of the pages before ``position`` the first that tokens from there on read, in a group with this window."""
    return 0 if window is None else max(0, position - window + 1) // page_size


def batch_pages(layout: PageLayout, group: int) -> int:
    """Most pages of a group that should be under way at once: so many that their bytes are at least ``BATCH_BYTES``."""
    return -(-BATCH_BYTES // layout.page_bytes(group))


def largest_batch(layout: PageLayout) -> int:
    """Bytes of the largest batch of pages of any group."""
    return max(batch_pages(layout, group) * layout.page_bytes(group) for group in range(len(layout.groups)))


def pages_read(layout: PageLayout, page_tables: Sequence[Int32], slot: int, position: int) -> tuple[Int32, ...]:
    """Of each cache group the pages that a sequence's tokens from ``position`` on read, all before it being computed:
    in a group with a window those of the window, else all. ``page_tables`` are as in ``StepInputs``."""
    end = -(-position // layout.page_size)
    firsts = [first_page_read(group.window, position, layout.page_size) for group in layout.groups]
    return tuple(table[slot, first:end] for table, first in zip(page_tables, firsts, strict=True))


def hand_over(source: Executor, given: Sequence[Int32], target: Executor, taken: Sequence[Int32]) -> int:
    """Copies pages ``given[g]`` of each cache group g of ``source`` to pages ``taken[g]`` of ``target``, converted to
    its format: all groups or none. Returns the bytes that ``target`` took.

    Between steps of both. What ``source`` holds stays as it is; who owns the pages is the callers' affair. Raises
    ``TransferError``, before anything is written, where the executors or the pages do not fit each other.
    """
    layout = target.layout
    layout.check_same(source.layout.converted(layout.page_format))
    if not len(given) == len(taken) == len(layout.groups):
        raise TransferError(f"pages of {len(given)} and {len(taken)} cache groups; this model has {len(layout.groups)}")
    for group, (mine, theirs) in enumerate(zip(given, taken, strict=True)):
        layout.check_pages(source.num_pages, group, mine)
        layout.check_pages(target.num_pages, group, theirs, written=True)
        if len(mine) != len(theirs):
            raise TransferError(f"{len(mine)} pages of group {group} cannot become {len(theirs)}")
    moved = 0
    for group, (mine, theirs) in enumerate(zip(given, taken, strict=True)):
        batch = batch_pages(layout, group)
        place = np.empty((min(batch, len(mine)), layout.page_bytes(group)), np.uint8)
        for first in range(0, len(mine), batch):
            some = slice(first, first + batch)
            out = place[: len(mine[some])]
            target.import_pages(group, theirs[some], source.export_pages(group, mine[some], layout.page_format, out))
            moved += out.nbytes
    return moved
