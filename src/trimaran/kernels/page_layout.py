"""What the bytes of pages mean that one executor gives away and another takes, and the checks of both sides."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from trimaran.base.errors import TransferError
from trimaran.base.formats import CacheGroup, KVFormat

LAYOUT_VERSION = 2  # raised whenever an executor's bytes change their meaning

Pages = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class PageLayout:
    """The layout of an executor's pages. Bytes may be handed over between executors of equal layouts only.

    Where in a page a number lies is each kind of executor's own business, so ``executor`` is part of the layout.
    """

    executor: str
    page_format: KVFormat
    page_size: int  # tokens
    groups: tuple[CacheGroup, ...]
    scales: tuple[tuple[KVFormat, str], ...] = ()  # digests of what static formats have beside their pages
    version: int = LAYOUT_VERSION

    def page_bytes(self, group: int) -> int:
        """Bytes of one page of cache group number ``group``."""
        return self.groups[group].page_bytes(self.page_format, self.page_size)

    def converted(self, page_format: KVFormat) -> "PageLayout":
        """The layout of what ``export_pages`` gives in another format."""
        return replace(self, page_format=page_format)

    def check_same(self, theirs: "PageLayout") -> None:
        """Raises ``TransferError`` naming the first thing that differs from ``theirs``."""
        for name, mine in vars(self).items():
            other = getattr(theirs, name)
            if name == "scales":  # only those of the pages' own format matter
                mine, other = dict(self.scales).get(self.page_format), dict(theirs.scales).get(self.page_format)
            if other != mine:
                what = name.replace("_", " ")
                raise TransferError(f"pages of another layout: their {what} is {other}, ours is {mine}")

    def check_pages(self, num_pages: tuple[int, ...], group: int, pages: Pages, *, written: bool = False) -> None:
        """Raises ``TransferError`` unless ``pages`` ``[n]`` are pages of the group, the null page excluded.

        ``written``: no page may be named twice.
        """
        if not 0 <= group < len(self.groups):
            raise TransferError(f"cache group {group} is not one of the {len(self.groups)} of this model")
        if pages.dtype != np.int32 or pages.ndim != 1:
            raise TransferError(f"pages must be int32 [n], not {pages.dtype} {list(pages.shape)}")
        if wrong := [page for page in pages.tolist() if not 0 < page < num_pages[group]]:
            raise TransferError(f"page {wrong[0]} is not in 1 to {num_pages[group] - 1}, the pages of group {group}")
        if written and len(np.unique(pages)) < len(pages):
            raise TransferError("one of the pages to be written is named twice")

    def check_import(self, num_pages: tuple[int, ...], group: int, pages: Pages, data: Bytes) -> None:
        """``check_pages``, and that ``data`` is uint8 ``[n, page_bytes]``."""
        self.check_pages(num_pages, group, pages, written=True)
        shape = (len(pages), self.page_bytes(group))
        if data.dtype != np.uint8 or data.shape != shape:
            raise TransferError(
                f"{len(pages)} {self.page_format} pages of group {group} are uint8 {list(shape)}, "
                f"not {data.dtype} {list(data.shape)}"
            )
