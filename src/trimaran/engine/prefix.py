"""Prefix keys: what a full page of tokens is called, so that a later prompt with the same beginning can find it.

The key of a page is SHA-256 over the key of the page before it and its own token ids. The chain starts at a digest of
everything that decides what the page's bytes mean: the model's content, the formats of weights and pages, the page
size, and the tenant's salt. A key therefore names one prefix under one model for one tenant, and cannot be forged by
choosing tokens (a fast hash here is a security hole: vLLM issue 15297 and its successors).
"""

import hashlib

from trimaran.engine.pages import PagePool, PageRef
from trimaran.engine.sequence import Sequence


class PrefixCache:
    """Finds the pages that a sequence need not compute, and publishes those that it has computed.

    It also knows which pages running sequences are about to compute, so that requests with the same beginning that
    arrive together (``n`` answers to one prompt) compute it once.
    """

    def __init__(self, pool: PagePool, page_size: int, identity: bytes, *, enabled: bool = True) -> None:
        """``identity`` distinguishes models and formats: digest, weight format, page format, page size."""
        self._pool = pool
        self._page_size = page_size
        self._identity = hashlib.sha256(identity).digest()
        self._enabled = enabled
        self._coming: dict[bytes, Sequence] = {}

    def take(self, sequence: Sequence) -> list[PageRef]:
        """References on the leading pages of ``sequence`` that are sealed already; the caller owns them.

        The last token is never covered: it must run to give logits. So a prompt that is entirely cached recomputes its
        last page, into a page of its own.
        """
        taken: list[PageRef] = []
        for index in range(self._useful_pages(sequence)):
            ref = self._pool.find(self.key(sequence, index))
            if ref is None:
                break
            taken.append(ref)
        return taken

    def is_coming(self, sequence: Sequence) -> bool:
        """True when the next page that the sequence could take is being computed by one of no lower priority."""
        if self._coming:
            for index in range(self._useful_pages(sequence)):
                key = self.key(sequence, index)
                if not self._pool.has(key):
                    writer = self._coming.get(key)
                    return writer is not None and writer.priority <= sequence.priority
        return False

    def announce(self, sequence: Sequence) -> None:
        """Says that ``sequence`` has started and will compute its full pages from ``sealed`` on."""
        if self._enabled:
            for index in range(sequence.sealed // self._page_size, sequence.total // self._page_size):
                self._coming.setdefault(self.key(sequence, index), sequence)

    def withdraw(self, sequence: Sequence) -> None:
        """Takes the announcement back: the sequence stops before it has computed what it announced."""
        for key in sequence.keys[sequence.sealed // self._page_size :]:
            if self._coming.get(key) is sequence:
                del self._coming[key]

    def publish(self, sequence: Sequence) -> None:
        """Seals the pages that the last committed step filled."""
        size = self._page_size
        while sequence.sealed + size <= sequence.computed:
            index = sequence.sealed // size
            key = self.key(sequence, index)
            self._pool.seal(sequence.pages[index], key, findable=self._enabled)
            sequence.sealed += size
            if self._coming.get(key) is sequence:
                del self._coming[key]

    def forget(self, sequence: Sequence) -> None:
        """Makes the sequence's pages unfindable, because what they hold turned out to be bad."""
        for ref in sequence.pages:
            self._pool.forget(ref)

    def key(self, sequence: Sequence, index: int) -> bytes:
        """The key of the sequence's ``index``-th page, which must be full; kept on the sequence."""
        keys, size = sequence.keys, self._page_size
        while len(keys) <= index:
            parent = keys[-1] if keys else hashlib.sha256(self._identity + sequence.salt.encode()).digest()
            first = len(keys) * size
            keys.append(hashlib.sha256(parent + sequence.tokens[first : first + size].tobytes()).digest())
        return keys[index]

    def _useful_pages(self, sequence: Sequence) -> int:
        return (sequence.total - 1) // self._page_size if self._enabled else 0
