"""An executor without a model: real pages, deterministic tokens, modelled step time.

The next token is a hash of the whole history *as read back through the page tables*; of the last ``window`` tokens in
a cache group with a window. A page that was mixed up, shared by two writers, published before it was written or given
back while it was still to be read therefore changes the output, which is what the tests of schedulers, servers and
pools look for. It computes nothing else, so that many workers fit on two cores.
"""

import time
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from trimaran.base.formats import KVFormat
from trimaran.kernels.null_model import NullModel as NullModel
from trimaran.kernels.page_tags import PageGuard
from trimaran.kernels.program import Program
from trimaran.kernels.step import ExecutorOptions, InOnePiece, Int32, StepInputs, StepOutputs, UInt8
from trimaran.kernels.weights import Weight

UInt64 = npt.NDArray[np.uint64]
PEAK = 12.0  # the greedy token's logit; the others lie in [0, 10)


class NullExecutor(InOnePiece):
    """See the module's text; the contract is that of ``Executor``, and inputs that break it are assertion errors."""

    name = "null"
    isa = "none"
    threads = 1
    weight_bytes = 0

    def __init__(
        self,
        program: Program,
        weights: Mapping[str, Weight],
        options: ExecutorOptions,
        model: NullModel | None = None,
    ) -> None:
        assert not weights, "the null executor reads no weights"
        self.model = model or NullModel(vocab=program.vocab, context=program.context)
        self.num_pages = tuple(options.pages_of(number) for number in range(len(program.groups)))
        self.page_size = options.page_size
        self.layout = options.layout(self.name, program.groups)
        self._options = options
        self._windows = tuple(group.window for group in program.groups)
        self._guard = PageGuard(self.num_pages, self._windows, options.page_size, options.page_tags)
        self.page_tags = self._guard.tags
        self._pages = [np.full((pages, options.page_size), -1, np.int32) for pages in self.num_pages]
        self._factors = [_factors(number, program.context) for number in range(len(program.groups))]
        self.kv_bytes = sum(pages.nbytes for pages in self._pages)
        self._token_bytes = 4 * options.page_size  # of a page

    def run(self, step: StepInputs) -> StepOutputs:
        step, faulty = self._guard.admit(step)
        self._check(step, faulty)
        for i in range(len(step.slots)):
            self._write(step, i)
        owners = np.searchsorted(step.starts, step.logits_rows, side="right") - 1
        hashes = [self._hash(step, int(i), int(row)) for i, row in zip(owners, step.logits_rows, strict=True)]
        greedy = np.array([self._token(h) for h in hashes], np.int32)
        logits = self._logits(np.array(hashes, np.uint64), greedy) if step.want_logits else None
        if seconds := self.model.step_seconds + len(step.tokens) * self.model.token_seconds:
            time.sleep(seconds)
        return StepOutputs(greedy, logits, faulty)

    def export_pages(self, group: int, pages: Int32, page_format: KVFormat, out: UInt8 | None = None) -> UInt8:
        """See ``Executor.export_pages``: token ids in any format, and nothing behind them."""
        assert self._started is None, "a step is running"
        self.layout.check_pages(self.num_pages, group, pages)
        shape = len(pages), self.layout.converted(page_format).page_bytes(group)
        data = np.empty(shape, np.uint8) if out is None else out
        data[:, : self._token_bytes] = self._pages[group][pages].view(np.uint8)
        data[:, self._token_bytes :] = 0
        return data

    def import_pages(self, group: int, pages: Int32, data: UInt8) -> None:
        """See ``Executor.import_pages``."""
        assert self._started is None, "a step is running"
        self.layout.check_import(self.num_pages, group, pages, data)
        self._pages[group][pages] = np.ascontiguousarray(data[:, : self._token_bytes]).view(np.int32)

    def close(self) -> None:
        """Nothing to free."""

    def _slots(self, step: StepInputs, group: int, i: int, first: int, end: int) -> tuple[npt.NDArray[np.int64], ...]:
        """Page and offset of sequence ``i``'s positions ``first:end``."""
        positions = np.arange(first, end)
        pages = step.page_tables[group][step.slots[i], positions // self.page_size]
        return pages, positions % self.page_size

    def _write(self, step: StepInputs, i: int) -> None:
        start, end, context = int(step.starts[i]), int(step.starts[i + 1]), int(step.contexts[i])
        for group, pages in enumerate(self._pages):
            pages[self._slots(step, group, i, context, context + end - start)] = step.tokens[start:end]

    def _hash(self, step: StepInputs, i: int, row: int) -> int:
        end = int(step.contexts[i]) + row - int(step.starts[i]) + 1
        total = 0
        for group, pages in enumerate(self._pages):
            first = self._first(group, end - 1)
            history = pages[self._slots(step, group, i, first, end)].astype(np.uint64)
            total += int(((history + np.uint64(1)) * self._factors[group][first:end]).sum(dtype=np.uint64))
        return int(_mix(np.array([total % 2**64], np.uint64))[0])  # wraps, as hashes do

    def _first(self, group: int, position: int) -> int:
        """The first position that ``position`` sees."""
        window = self._windows[group]
        return 0 if window is None else max(0, position - window + 1)

    def _token(self, value: int) -> int:
        model = self.model
        if model.eos_id is None:
            return value % model.vocab
        if value % model.eos_one_in == 0:
            return model.eos_id
        token = (value // model.eos_one_in) % (model.vocab - 1)
        return token + (token >= model.eos_id)

    def _logits(self, hashes: UInt64, greedy: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        tokens = np.arange(1, self.model.vocab + 1, dtype=np.uint64)
        noise = _mix(np.add.outer(hashes, tokens)) >> np.uint64(40)  # 24 bits, which float32 holds exactly
        logits: npt.NDArray[np.float32] = noise.astype(np.float32) * np.float32(10.0 / 2**24)
        logits[np.arange(len(greedy)), greedy] = PEAK
        return logits

    def _check(self, step: StepInputs, faulty: tuple[int, ...]) -> None:
        assert len(step.tokens) <= self._options.max_rows
        assert len(step.slots) <= self._options.max_sequences
        assert 0 <= step.tokens.min() <= step.tokens.max() < self.model.vocab
        assert step.starts[0] == 0
        assert step.starts[-1] == len(step.tokens)
        assert (np.diff(step.starts) > 0).all(), "each sequence has rows"
        assert (np.diff(step.logits_rows) > 0).all(), "logits rows ascend"
        assert len(set(step.slots.tolist())) == len(step.slots), "two sequences in one row of the page table"
        for group in range(len(self._pages)):
            self._check_pages(step, group, faulty)

    def _check_pages(self, step: StepInputs, group: int, faulty: tuple[int, ...]) -> None:
        written: set[int] = set()
        for i, slot in enumerate(step.slots):
            if i in faulty:  # it has the null page alone
                continue
            context = int(step.contexts[i])
            length = context + int(step.starts[i + 1] - step.starts[i])
            first = self._first(group, context) // self.page_size
            seen = step.page_tables[group][slot, first : -(-length // self.page_size)]
            assert length <= self.model.context
            assert 0 < seen.min() <= seen.max() < self.num_pages[group], "a page that nobody was given"
            mine = set(seen[context // self.page_size - first :].tolist())
            assert not mine & written, "two sequences of a step write to one page"
            written |= mine


def _factors(group: int, context: int) -> UInt64:
    """An odd number for each position, other ones in each cache group."""
    return _mix(np.arange(1, context + 1, dtype=np.uint64) + np.uint64(group << 32)) | np.uint64(1)


def _mix(x: UInt64) -> UInt64:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014): every input bit reaches every output bit."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
