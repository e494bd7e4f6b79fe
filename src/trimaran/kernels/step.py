"""One step as plain arrays, and the contract of everything that runs one."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from trimaran.base.formats import ActivationFormat, CacheGroup, KVFormat
from trimaran.kernels.kv_scales import KVScales
from trimaran.kernels.page_layout import PageLayout
from trimaran.kernels.page_tags import PageTags, UInt64

Int32 = npt.NDArray[np.int32]
UInt8 = npt.NDArray[np.uint8]
Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class StepInputs:
    """The rows of a step, grouped by sequence.

    Sequence ``i`` owns rows ``starts[i]:starts[i + 1]``; its first row is at position ``contexts[i]``, and its pages
    in group g are ``page_tables[g][slots[i], : ceil((contexts[i] + rows) / page_size)]``; in a group with a window,
    entries before the first row's window are not read. The arrays belong to the caller and must not change until the
    step has returned. A page may stand in several rows of a table (shared prefix), but only one sequence of a step
    writes to a page.
    """

    tokens: Int32  # [T]
    starts: Int32  # [S + 1]
    contexts: Int32  # [S]
    slots: Int32  # [S]
    page_tables: tuple[Int32, ...]  # per cache group [max sequences, max pages of a sequence]; unused entries are 0
    logits_rows: Int32  # [R] row indices, ascending
    want_logits: bool  # False: only ``greedy`` is needed
    types: Int32 | None = None  # [T] token types, of an encoder; ``None``: all 0
    # If pages have tags: what each entry of the tables was made for, and the numbers of the step's sequences.
    expected: tuple[PageTags, ...] | None = None
    readers: UInt64 | None = None  # [S]
    # If prompts have ops of their own: so many sequences, the first, have rows of generated tokens, others of prompts.
    decoding: int | None = None


@dataclass(frozen=True)
class StepOutputs:
    """``greedy`` ``[R]`` is the arg-max (lowest id on a tie), or -1 where the largest logit is not a finite number.

    ``logits`` ``[R, vocab]`` fp32 is valid until the next step.

    ``faulty`` are the sequences of the step whose pages were not what it expected: no page but the null page was read
    or written for them, and what stands in their rows means nothing.
    """

    greedy: Int32
    logits: Float32 | None
    faulty: tuple[int, ...] = ()


@dataclass(frozen=True)
class ExecutorOptions:
    """What an executor needs beside the program and its weights."""

    kv_format: KVFormat = KVFormat.BF16
    activations: ActivationFormat = ActivationFormat.INT8  # only meets quantised weights
    num_pages: int | tuple[int, ...] = 1024  # of every cache group, or of each; page 0 included
    page_size: int = 16  # tokens; a multiple of 16
    max_rows: int = 512  # most tokens of one step
    max_sequences: int = 64  # most sequences of one step, and of logits rows
    page_tags: bool = False  # check before every step that its pages are those that it expects (page_tags.py)
    threads: int = 0  # 0: one per core that this process may use
    share_prefixes: bool = True  # attention reads pages once for all sequences of a step that share them; same bits
    pin_threads: bool = False  # tie all but the caller's to a core each, the first core being left to the caller
    kv_scales: tuple[KVScales, ...] = ()  # of the static formats that pages have, or are exported in

    def pages_of(self, group: int) -> int:
        """Pages of cache group number ``group``, the null page included."""
        return self.num_pages if isinstance(self.num_pages, int) else self.num_pages[group]

    def layout(self, executor: str, groups: tuple[CacheGroup, ...]) -> PageLayout:
        """The layout of the pages of the executor called ``executor``."""
        scales = tuple((each.fmt, each.digest) for each in self.kv_scales)
        return PageLayout(executor, self.kv_format, self.page_size, groups, scales)


class Executor(Protocol):
    """Runs one program over its own page memory. Not thread-safe: one caller, one step at a time.

    The result of a row depends on that row's sequence alone: not on its neighbours, on how a prompt was cut into
    chunks, or on the number of threads. Page 0 is the null page: never handed to a sequence.
    """

    name: str  # "reference", "native", "null"
    isa: str
    threads: int
    num_pages: tuple[int, ...]  # of each cache group
    page_size: int
    layout: PageLayout
    page_tags: tuple[PageTags, ...] | None  # of each cache group; whoever hands out pages writes them, between steps
    weight_bytes: int
    kv_bytes: int

    def run(self, step: StepInputs) -> StepOutputs:
        """Writes the step's keys and values into the pages and returns tokens; raises nothing on valid inputs."""
        ...

    def start(self, step: StepInputs) -> None:
        """The first half of ``run``: the step may make progress while the caller does something else.

        Until ``finish``, which must follow, the arrays of ``step`` and the rows that it has of the page table stay as
        they are, except that entries after a sequence's last page may be written.
        """
        ...

    def finish(self) -> StepOutputs:
        """The second half: returns when the step is done."""
        ...

    def export_pages(self, group: int, pages: Int32, page_format: KVFormat, out: UInt8 | None = None) -> UInt8:
        """``pages`` ``[n]`` of a cache group as an executor of this kind holds them in ``page_format``: ``[n, bytes]``,
        written to ``out`` of that shape where it is given.

        In the executor's own format that is a copy. In another it is bit for bit what writing the keys and values that
        these pages hold, widened to fp32, would give; keys or values whose own format stays the same are copied. What
        lies behind a sequence's last token is of no meaning. Between steps only. Raises ``TransferError`` for a page
        or group that does not exist, ``ConfigError`` for a format that the group cannot have.
        """
        ...

    def import_pages(self, group: int, pages: Int32, data: UInt8) -> None:
        """Fills ``pages`` with what ``export_pages`` of an executor whose ``layout``, once ``converted``, is this one's
        has given. Between steps only. Raises ``TransferError``, as above and for data of another shape, before
        anything is written."""
        ...

    def close(self) -> None:
        """Frees threads and memory; idempotent. A step that was started is finished first."""
        ...


class InOnePiece(ABC):
    """``start`` and ``finish`` for an executor that knows only ``run``: a step that was started runs in ``finish``."""

    _started: StepInputs | None = None

    @abstractmethod
    def run(self, step: StepInputs) -> StepOutputs:
        """See ``Executor.run``."""

    def start(self, step: StepInputs) -> None:
        assert self._started is None, "a step is running"
        self._started = step

    def finish(self) -> StepOutputs:
        step, self._started = self._started, None
        assert step is not None, "no step is running"
        return self.run(step)
