"""One request inside the engine: its tokens, how far it has been computed, and the pages it holds."""

import sys
from array import array
from collections.abc import Sequence as Items

from trimaran.base.sampling import SamplingParams
from trimaran.engine.group import HeldPages
from trimaran.kernels.page_tags import owner_number


class Sequence:
    """Prompt and output tokens with three counters, ``sealed <= computed <= total``.

    * ``total``: tokens known; grows by one with each sampled token.
    * ``computed``: tokens whose keys and values are in pages; behind ``total`` while the prompt is being prefilled,
      exactly one behind while decoding.
    * ``sealed``: tokens in sealed pages, a multiple of the page size.

    The sequence owns the references in ``pages``; the cache takes and returns them. Preemption resets ``computed`` and
    ``sealed`` to 0 and keeps the tokens.

    ``known`` tokens are computed already, by another engine or before the sequence gave its pages up: when it is placed
    it gets pages for them, which are filled from outside before it takes part in a step.
    """

    __slots__ = (
        "arrival",
        "cached",
        "computed",
        "due",
        "id",
        "keys",
        "known",
        "owner",
        "pages",
        "priority",
        "prompt_length",
        "room",
        "salt",
        "sampling",
        "sealed",
        "shareable",
        "slot",
        "sources",
        "tokens",
    )

    def __init__(
        self,
        request_id: str,
        prompt: Items[int],
        sampling: SamplingParams,
        *,
        arrival: int = 0,
        priority: int = 0,
        salt: str = "",
    ) -> None:
        self.id = request_id
        self.owner = owner_number(request_id)  # of the pages that it fills
        self.tokens = array("i", prompt)
        self.prompt_length = len(prompt)
        self.sampling = sampling
        self.arrival = arrival  # unique in an engine: the order in which requests came
        self.priority = priority  # smaller runs first
        self.salt = salt
        self.computed = 0
        self.sealed = 0
        self.known = 0
        self.shareable = sys.maxsize  # leading tokens whose pages others may find, and it may find of others
        self.cached: int | None = None  # prompt tokens that the prefix cache had, known from the first admission on
        self.pages: tuple[HeldPages, ...] = ()  # of each cache group, while running
        self.room = 0  # tokens that fit the pages it has in every group
        self.due = 0  # tokens computed from which on a page can be sealed or given back
        self.keys: list[bytes] = []  # prefix keys of full pages, computed when first needed
        self.slot: int | None = None  # row of the page table, while running
        self.sources: frozenset[str] = frozenset()  # workers elsewhere that computed something of what it reads

    @property
    def total(self) -> int:
        return len(self.tokens)

    @property
    def output_length(self) -> int:
        return len(self.tokens) - self.prompt_length

    @property
    def in_prompt(self) -> bool:
        """Whether the next row to be computed is one of the prompt."""
        return self.computed < self.prompt_length

    @property
    def rank(self) -> tuple[int, int]:
        """Who goes first: the smaller priority, then the earlier arrival."""
        return self.priority, self.arrival

    def advance(self, count: int) -> None:
        """Marks ``count`` more tokens as computed."""
        self.computed += count
        assert self.sealed <= self.computed <= len(self.tokens), self

    def append(self, token: int) -> None:
        """Adds a sampled token; only possible once everything before it has been computed."""
        assert self.computed == len(self.tokens), self
        self.tokens.append(token)

    def __repr__(self) -> str:
        counters = f"sealed={self.sealed} computed={self.computed} total={self.total}"
        pages = ", ".join(f"{held.first}:{held.end}" for held in self.pages)
        return f"<Sequence {self.id} {counters} pages=[{pages}] slot={self.slot}>"
