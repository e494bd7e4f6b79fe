"""The CPU executor: lowers a program to the compiled core (``csrc/``) and runs one native call per step."""

import os
import sys
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from trimaran.base.env import truth
from trimaran.base.errors import ConfigError
from trimaran.base.formats import KVFormat
from trimaran.kernels.bounds import Bounds
from trimaran.kernels.kv_scales import scales_of
from trimaran.kernels.native_assembly import Assembly
from trimaran.kernels.native_core import _native
from trimaran.kernels.native_profile import Profile, profiles_of
from trimaran.kernels.native_shapes import check_shapes
from trimaran.kernels.packed_weights import Packed
from trimaran.kernels.page_tags import PageTags, check_expected
from trimaran.kernels.prefill_ops import Part, parts_of
from trimaran.kernels.program import Program
from trimaran.kernels.step import ExecutorOptions, Int32, StepInputs, StepOutputs, UInt8
from trimaran.kernels.validate import check_options, check_pages, check_weights
from trimaran.kernels.weights import ReadWeight, Weight

Choice = int | tuple[int, float, list[tuple[int, float]]]  # with logprobs: id, logprob, the most likely
UInt32 = npt.NDArray[np.uint32]
_NO_READERS = np.zeros(0, np.uint64)
_NO_MASKS = np.zeros((0, 0), np.uint32)


class NativeExecutor:
    """Runs a program on the CPU, with AVX-512 VNNI, AVX-VNNI, AVX2 or plain C++.

    ``TRIMARAN_ISA`` forces one of them; with ``TRIMARAN_PROFILE`` ops are timed (``native_profile.py``). Weights are
    packed once, each when ``read`` has read it where ``weights`` are without numbers, or taken as they lie in
    ``packed``; the arrays that were given are not kept. Raises ``CheckpointError`` for weights that do not fit the
    program, ``UnsupportedError`` for shapes that the kernels do not have, ``ConfigError`` for bad options.
    """

    name = "native"
    _started: StepInputs | None = None
    _running: Part  # of the step that was started last

    def __init__(
        self,
        program: Program,
        weights: Mapping[str, Weight],
        options: ExecutorOptions,
        packed: Packed | None = None,
        read: ReadWeight | None = None,
    ) -> None:
        check_options(options)
        check_pages(program, options)
        if packed is None:  # else they were checked when they were packed
            check_weights(program, weights)
        check_shapes(program, weights)
        self.isa = choose_isa(os.environ)
        profiled = truth("TRIMARAN_PROFILE", os.environ.get("TRIMARAN_PROFILE") or "false")
        self.threads = options.threads or len(os.sched_getaffinity(0))
        self.num_pages = tuple(map(options.pages_of, range(len(program.groups))))
        self.page_size = options.page_size
        self.layout = options.layout(self.name, program.groups)
        self.page_tags = tuple(PageTags.of(pages) for pages in self.num_pages) if options.page_tags else None
        self._faulty: list[int] = []
        self._later: list[Part] = []  # of the running step, what follows the part that is being run
        self._apart = bool(program.prefill_ops)
        # What the core reads pages by: it knows their addresses alone, so they are held here.
        self._page_tables: tuple[Int32, ...] = ()
        self._expected: tuple[PageTags, ...] | None = None
        self._result = program.result
        self._kv_scales = options.kv_scales
        try:
            read = read or weights.__getitem__
            assembly = Assembly(program, weights, options, self.isa, self.threads, read, packed)
            core = assembly.core
            if options.pin_threads:
                core.pin_threads(sorted(os.sched_getaffinity(0)))
        except RuntimeError as error:  # what C++ says when the system starts no more threads
            raise ConfigError(f"threads={self.threads} cannot be started: {error}") from error
        self._core: _native.Program | None = core
        self._packed: Packed | None = assembly.packed
        self._tags = self.page_tags or ()
        self.check_pages(on=options.page_tags)
        self.weight_bytes = self._core.weight_bytes
        self.kv_bytes = self._core.kv_bytes
        self._greedy = self._core.greedy_view()
        self._logits = self._core.logits_view()
        self._profiles: tuple[Profile, ...] = ()
        if profiled:
            self._profiles = profiles_of(program, weights, options, Bounds(self.threads), core.profile())

    @property
    def packed(self) -> Packed:
        """The packed weights: another executor of an equal program may be given them. They outlive this one."""
        if self._packed is None:
            raise ValueError("the executor is closed")
        return self._packed

    def run(self, step: StepInputs) -> StepOutputs:
        """See ``Executor.run``. ``ValueError`` names the first input out of range, ``TypeError`` a wrong dtype."""
        self.start(step)
        return self.finish()

    def start(self, step: StepInputs) -> None:
        """See ``Executor.start``: the team's other threads work already. Raises as ``run`` does."""
        if self._core is None:
            raise ValueError("the executor is closed")
        assert self._started is None, "a step is running"
        check_expected(step, self.page_tags)
        if step.page_tables is not self._page_tables or step.expected is not self._expected:
            self._core.read_tables(step.page_tables, step.expected or ())
            self._page_tables, self._expected = step.page_tables, step.expected
        part = Part(step)
        if self._apart:
            *self._later, part = parts_of(step)  # prompts first: they take longest
        self._faulty = []
        self._begin(part)
        self._started = step

    def _begin(self, part: Part) -> None:
        assert self._core is not None
        step = part.step
        faulty = self._core.begin(
            step.tokens,
            step.starts,
            step.contexts,
            step.slots,
            _NO_READERS if step.readers is None else step.readers,
            step.logits_rows,
            step.want_logits,
            part.prefill,
            part.first_result,
            step.types,
        )
        self._running = part
        if faulty:
            self._faulty[:0] = [part.first_sequence + sequence for sequence in faulty]

    def check_pages(self, *, on: bool) -> None:
        """Turns the check of page tags off, and on again, for who measures what it costs; nothing else should. Between
        two steps of an executor that has tags, and steps must say what they expect accordingly."""
        assert self._core is not None
        self.page_tags = self._tags if on else None
        for number, pages in enumerate(self._tags):
            self._core.tag_pages(number, *(pages if on else PageTags.of(0)))

    @property
    def check_seconds(self) -> float:
        """Seconds that comparing the page tags of the last step has taken."""
        return 0.0 if self._core is None else self._core.check_seconds

    def finish(self) -> StepOutputs:
        """See ``Executor.finish``: the calling thread joins the team."""
        step, self._started = self._started, None
        assert self._core is not None
        assert step is not None, "no step is running"
        self._finish_part()
        while self._later:
            self._begin(self._later.pop())
            self._finish_part()
        rows = len(step.logits_rows)
        logits = self._logits[:rows, : self._result] if step.want_logits else None
        return StepOutputs(self._greedy[:rows].copy(), logits, tuple(self._faulty))

    def _finish_part(self) -> None:
        assert self._core is not None
        self._core.finish_step()
        if self._profiles:
            self._profiles[self._running.prefill].record(self._running.step)

    def choose(
        self,
        samplers: Sequence[_native.Sampler],
        rows: Sequence[int],
        positions: Sequence[int],
        masks: UInt32 = _NO_MASKS,
        masked: Sequence[int] = (),
        after: Sequence[int] = (),
    ) -> list[Choice]:
        """A token for each of ``rows`` of the last step's logits; they must have been wanted. No row comes twice.

        ``masks`` ``[n, ceil(vocab / 32)]`` have a bit for each token that may be chosen; ``masked`` says which of them
        is for each of ``rows``, -1 being none. Without ``masked`` there are none. ``after`` says of the rows of a draft
        what the row before must give; where it does not, this one's token means nothing, and its sampler need not have
        seen it. -1, or without ``after``: of no draft.
        """
        if self._core is None:
            raise ValueError("the executor is closed")
        return self._core.choose(samplers, rows, positions, masks, masked, after)

    def export_pages(self, group: int, pages: Int32, page_format: KVFormat, out: UInt8 | None = None) -> UInt8:
        """See ``Executor.export_pages``."""
        self.layout.check_pages(self.num_pages, group, pages)
        size = self.layout.converted(page_format).page_bytes(group)
        scales_of(self._kv_scales, page_format, group)  # raises where there are none
        data = np.empty((len(pages), size), np.uint8) if out is None else out
        if page_format in (KVFormat.INT4, KVFormat.INT8_INT4):
            data.fill(0)  # it leaves gaps
        self._idle_core().export_pages(group, np.ascontiguousarray(pages), page_format, data)
        return data

    def import_pages(self, group: int, pages: Int32, data: UInt8) -> None:
        """See ``Executor.import_pages``."""
        self.layout.check_import(self.num_pages, group, pages, data)
        self._idle_core().import_pages(group, np.ascontiguousarray(pages), np.ascontiguousarray(data))

    def _idle_core(self) -> _native.Program:
        if self._core is None:
            raise ValueError("the executor is closed")
        assert self._started is None, "a step is running"
        return self._core

    def close(self) -> None:
        """Ends the threads and frees the memory, unless logits of the last step are still held. Prints the profile."""
        if self._started is not None:
            self.finish()  # the team reads memory that is about to go
        for profile in self._profiles:
            print(profile.table(), end="", file=sys.stderr)
        self._profiles = ()
        self._core = self._packed = None
        self._greedy = np.zeros(0, np.int32)
        self._logits = np.zeros((0, 0), np.float32)

    def __del__(self) -> None:
        if self._started is not None and self._core is not None:
            self._core.finish_step()  # the team reads the arrays of the step, which are about to go


def choose_isa(environ: Mapping[str, str]) -> str:
    """The instruction set to run: what ``TRIMARAN_ISA`` says, or the best that this processor has."""
    usable = _native.usable_isas()
    asked = environ.get("TRIMARAN_ISA")
    if not asked:
        return usable[0]
    if asked not in usable:
        raise ConfigError(f"TRIMARAN_ISA={asked!r} is not usable on this machine; choose one of {', '.join(usable)}")
    return asked
