"""Prefix keys: what a full page of tokens is called, so that a later prompt with the same beginning can find it.

The key of a page is SHA-256 over the key of the page before it and its own token ids. The chain starts at a digest of
everything that decides what the page's bytes mean: the model's content, the formats of weights and pages, the page
size, and the tenant's salt. A key therefore names one prefix under one model for one tenant, and cannot be forged by
choosing tokens (a fast hash here is a security hole: vLLM issue 15297 and its successors). Each cache group has a page
of its own under a key.
"""

import hashlib
from collections.abc import Sequence as Items

from trimaran.engine.group import HeldPages, PageGroup
from trimaran.engine.sequence import Sequence


class PrefixCache:
    """Finds the pages that a sequence need not compute, and publishes those that it has computed.

    A prefix can be used if groups without a window have all its pages, and those with one the pages that the token
    after it reads.

    It also knows which pages running sequences are about to compute, so that requests with the same beginning that
    arrive together (``n`` answers to one prompt) compute it once.
    """

    def __init__(self, groups: Items[PageGroup], identity: bytes, *, enabled: bool = True) -> None:
        """``identity`` distinguishes models and formats: digest, weight format, page format, page size."""
        self._groups = groups
        self._whole = [group.pool for group in groups if group.window is None]
        self._windowed = [group for group in groups if group.window is not None]
        self._page_size = groups[0].page_size
        self._identity = hashlib.sha256(identity).digest()
        self._enabled = enabled
        self._coming: dict[bytes, Sequence] = {}

    def take(self, sequence: Sequence) -> tuple[int, tuple[HeldPages, ...]]:
        """How many leading pages of ``sequence`` need not be computed, as many as possible, and for each group the
        references that the sequence needs then; the caller owns them.

        The last token is never covered: it must run to give logits. So a prompt that is entirely cached recomputes its
        last page, into a page of its own.
        """
        pages = self._usable(sequence)
        keys = sequence.keys[:pages]
        found = tuple(group.find(keys) for group in self._groups)
        for group, held in zip(self._groups, found, strict=True):
            sequence.sources |= group.pool.sources(held.refs)
        return pages, found

    def is_coming(self, sequence: Sequence) -> bool:
        """True when the next page that the sequence could take is being computed by one of no lower priority."""
        if not self._coming:
            return False
        pages = self._usable(sequence)
        if pages == self._most(sequence):
            return False
        writer = self._coming.get(self.key(sequence, pages))
        return writer is not None and writer.priority <= sequence.priority

    def announce(self, sequence: Sequence) -> None:
        """Says that ``sequence`` has started and will compute its full pages from ``sealed`` on."""
        if self._enabled:
            shared = min(sequence.total, sequence.shareable)
            for index in range(sequence.sealed // self._page_size, shared // self._page_size):
                self._coming.setdefault(self.key(sequence, index), sequence)

    def withdraw(self, sequence: Sequence) -> None:
        """Takes the announcement back: the sequence stops before it has computed what it announced."""
        for key in sequence.keys[sequence.sealed // self._page_size :]:
            if self._coming.get(key) is sequence:
                del self._coming[key]

    def publish(self, sequence: Sequence) -> None:
        """Seals the pages that the last committed step filled."""
        assert sequence.slot is not None
        size = self._page_size
        while sequence.sealed + size <= sequence.computed:
            index = sequence.sealed // size
            key = self.key(sequence, index)
            sequence.sealed += size
            findable = self._enabled and sequence.sealed <= sequence.shareable
            for group, held in zip(self._groups, sequence.pages, strict=True):
                if index >= held.first:  # a page that a window had passed before it was filled from outside is not held
                    what = sequence.slot, held, index, key, sequence.owner
                    group.seal(*what, findable=findable, sources=sequence.sources)
            if self._coming.get(key) is sequence:
                del self._coming[key]

    def forget(self, sequence: Sequence) -> None:
        """Makes the sequence's pages unfindable, given back or not, because what they hold turned out to be bad."""
        for key in sequence.keys[: sequence.sealed // self._page_size]:
            for group in self._groups:
                group.pool.forget(key)

    def distrust(self, source: str) -> int:
        """Makes the pages unfindable that the worker called ``source`` has a part in: how many could be found."""
        return sum(group.pool.distrust(source) for group in self._groups)

    def key(self, sequence: Sequence, index: int) -> bytes:
        """The key of the sequence's ``index``-th page, which must be full; kept on the sequence."""
        keys, size = sequence.keys, self._page_size
        while len(keys) <= index:
            parent = keys[-1] if keys else hashlib.sha256(self._identity + sequence.salt.encode()).digest()
            first = len(keys) * size
            keys.append(hashlib.sha256(parent + sequence.tokens[first : first + size].tobytes()).digest())
        return keys[index]

    def _most(self, sequence: Sequence) -> int:
        """Pages that the sequence could take if everything were cached."""
        return min(sequence.total - 1, sequence.shareable) // self._page_size if self._enabled else 0

    def _usable(self, sequence: Sequence) -> int:
        """Pages of the longest prefix of the sequence that can be used."""
        pages = self._most(sequence)
        if not pages:
            return 0
        self.key(sequence, pages - 1)  # and with it all before
        for pool in self._whole:
            pages = pool.leading(sequence.keys[:pages])
        while (gap := self._gap(sequence, pages)) is not None:
            pages = gap  # every prefix that is longer, and no longer than the one before, would read this page
        return pages

    def _gap(self, sequence: Sequence, pages: int) -> int | None:
        """Index of a page that is missing in a window at the end of a prefix of ``pages`` pages."""
        for group in self._windowed:
            for index in range(pages - 1, group.first(pages * self._page_size) - 1, -1):
                if not group.pool.has(sequence.keys[index]):
                    return index
        return None
