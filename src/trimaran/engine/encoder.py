"""The engine of an encoder: texts in, one vector each out, or pairs of texts and one logit each. A text is read whole,
in one step, and nothing is kept."""

import time
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trimaran.base.errors import ContextLengthError, NumericsError, QueueFullError, RequestError, TrimaranError
from trimaran.base.failures import failure_of
from trimaran.base.messages import Beat, Embed, Embedded, FromEngine, Started
from trimaran.kernels.step import Executor, Float32, Int32, StepInputs

RETRY_SECONDS = 1.0


@dataclass(slots=True)
class _Request:
    message: Embed
    vectors: Float32  # [texts, width]
    given: int = 0  # texts that are in a step, or were
    done: int = 0


class Encoder:
    """Runs requests in one thread, by priority and then in the order in which they came. Steps are filled with texts of
    any of them, so a text's vector must not depend on its company, and it does not: rows see their own text alone."""

    def __init__(
        self, executor: Executor, info: Started, *, max_rows: int, max_texts: int, max_waiting: int, normalised: bool
    ) -> None:
        """A step has at most ``max_rows`` tokens and ``max_texts`` texts; ``max_waiting`` is of requests."""
        assert info.embedding_width is not None, info
        assert max_rows >= info.context, "the longest text fits a step"
        self.info = info
        self._executor = executor
        self._width = info.embedding_width
        self._max_rows, self._max_texts, self._max_waiting = max_rows, max_texts, max_waiting
        self._normalised = normalised
        self._requests: dict[str, _Request] = {}
        self._waiting: list[_Request] = []  # in the order in which they run; those with texts that are in no step yet
        self._outbox: list[FromEngine] = []
        self._steps = self._tokens = 0
        self._seconds = self._executor_seconds = 0.0
        self._running: list[tuple[_Request, int]] | None = None  # whose texts, which of them
        self._started = 0.0
        self._given_up: TrimaranError | None = None

    @property
    def idle(self) -> bool:
        """True when ``step`` has nothing to do and nothing to say."""
        return not self._requests and not self._outbox

    def submit(self, message: Embed) -> None:
        """Queues a request; raises ``RequestError``, ``ContextLengthError`` or ``QueueFullError`` if it cannot."""
        if self._given_up is not None:
            raise self._given_up
        if message.id in self._requests:
            raise RequestError(f"the id {message.id!r} is in use", param="id")
        if len(self._requests) >= self._max_waiting:
            raise QueueFullError(f"{self._max_waiting} requests wait already", retry_after=RETRY_SECONDS)
        for tokens in message.texts:
            if not tokens:
                raise RequestError("a text has no tokens", param="input")
            if len(tokens) > self.info.context:
                raise ContextLengthError(
                    f"a text has {len(tokens)} tokens; the model reads {self.info.context}", param="input"
                )
            if not 0 <= min(tokens) <= max(tokens) < self.info.vocab:
                raise RequestError(f"token ids must be from 0 to {self.info.vocab - 1}", param="input")
        if not message.texts:
            raise RequestError("there is no text", param="input")
        self._check_pairs(message)
        request = _Request(message, np.empty((len(message.texts), self._width), np.float32))
        self._requests[message.id] = request
        insort(self._waiting, request, key=lambda waiting: waiting.message.priority)

    def cancel(self, request_id: str) -> None:
        """Forgets a request, which nobody waits for any more; unknown ids are ignored."""
        request = self._requests.pop(request_id, None)
        if request is not None and request in self._waiting:
            self._waiting.remove(request)

    def cancel_all(self) -> None:
        for request_id in list(self._requests):
            self.cancel(request_id)

    def give_up(self, error: TrimaranError) -> None:
        """Ends all requests with ``error``, and those that come later. Waits for a step that is running."""
        self.finish()
        self._given_up = error
        for request_id in list(self._requests):
            self.cancel(request_id)
            self._outbox.append(failure_of(request_id, error))

    def step(self) -> list[FromEngine]:
        """Returns what the step before has made, and starts another one if there are texts."""
        self.finish()
        if chosen := self._choose():
            self._start(chosen)
        messages, self._outbox = self._outbox, []
        return messages

    def finish(self) -> None:
        """Waits for the step that is running, if one is; its messages come with the next ``step``."""
        running, self._running = self._running, None
        if running is None:
            return
        results = self._executor.finish().logits
        assert results is not None
        now = time.perf_counter()
        self._steps += 1
        self._seconds += now - self._started
        self._executor_seconds += now - self._started
        for (request, text), vector in zip(running, results, strict=True):
            request.vectors[text] = vector
            request.done += 1
            if request.done == len(request.message.texts):
                self._end(request)

    def stats(self) -> Beat:
        """Counters since the start and gauges of now."""
        return Beat(
            steps=self._steps,
            prompt_tokens=self._tokens,
            step_seconds=self._seconds,
            executor_seconds=self._executor_seconds,
            running=len(self._requests) - len(self._waiting),
            waiting=len(self._waiting),
        )

    def warm_up(self) -> None:
        """Makes a vector the way every request does; raises what went wrong."""
        self.submit(Embed("warm-up", [[0]], seconds=None if self.info.score is None else [0]))
        answers: list[FromEngine] = []
        while not self.idle:
            answers += self.step()
        if not isinstance(answers[0], Embedded):
            raise NumericsError(f"the model cannot produce a vector: {answers[0]}")
        self.forget_counts()

    def forget_counts(self) -> None:
        """Counts from zero again, as if nothing had run."""
        self._steps = self._tokens = 0
        self._seconds = self._executor_seconds = 0.0

    def close(self) -> None:
        """Frees the executor's memory and threads; idempotent."""
        self._running = None  # the executor ends it by itself
        self._executor.close()

    def _check_pairs(self, message: Embed) -> None:
        seconds = message.seconds
        if (seconds is None) != (self.info.score is None):
            raise RequestError(f"this model reads {'texts' if self.info.score is None else 'pairs of texts'}")
        if seconds is None:
            return
        if len(seconds) != len(message.texts) or not all(
            0 <= second <= len(text) for second, text in zip(seconds, message.texts, strict=True)
        ):
            raise RequestError("seconds must say of each text where in it the second one begins", param="input")

    def _choose(self) -> list[tuple[_Request, int]]:
        """The texts of the next step: as many as fit, in order."""
        chosen: list[tuple[_Request, int]] = []
        rows = 0
        while self._waiting:
            request = self._waiting[0]
            texts = request.message.texts
            while request.given < len(texts):
                rows += len(texts[request.given])
                if rows > self._max_rows or len(chosen) == self._max_texts:
                    return chosen
                chosen.append((request, request.given))
                request.given += 1
            self._waiting.pop(0)
        return chosen

    def _start(self, chosen: Sequence[tuple[_Request, int]]) -> None:
        texts = [request.message.texts[number] for request, number in chosen]
        lengths = np.array([len(text) for text in texts])
        starts = np.zeros(len(texts) + 1, np.int32)
        np.cumsum(lengths, out=starts[1:])
        # Pages are this step's alone: handed out from the first on.
        pages = -(-lengths // self._executor.page_size)
        ends = np.cumsum(pages)
        table = np.zeros((len(texts), int(pages.max())), np.int32)
        for row, first, end in zip(table, ends - pages, ends, strict=True):
            row[: end - first] = np.arange(first + 1, end + 1)
        self._tokens += int(starts[-1])
        self._running = list(chosen)
        self._started = time.perf_counter()
        self._executor.start(
            StepInputs(
                tokens=np.concatenate([np.array(text, np.int32) for text in texts]),
                starts=starts,
                contexts=np.zeros(len(texts), np.int32),
                slots=np.arange(len(texts), dtype=np.int32),
                page_tables=(table,),
                logits_rows=starts[:-1].copy(),
                want_logits=True,
                types=_types(chosen, starts),
            )
        )

    def _end(self, request: _Request) -> None:
        if self._requests.pop(request.message.id, None) is None:
            return  # cancelled meanwhile
        vectors = request.vectors
        if self._normalised:
            lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64))[:, None]
            vectors = (vectors / np.maximum(lengths, 1e-12)).astype(np.float32)
        if np.isfinite(vectors).all():
            self._outbox.append(Embedded(request.message.id, vectors.astype("<f4").tobytes()))
        else:
            error = NumericsError("the model's vectors for this request are not finite")
            self._outbox.append(failure_of(request.message.id, error))


def _types(chosen: Sequence[tuple[_Request, int]], starts: Int32) -> Int32 | None:
    """1 for the rows of each pair's second text; ``None`` where there are no pairs."""
    types: Int32 | None = None
    for (request, number), start, end in zip(chosen, starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        if request.message.seconds is not None:
            types = np.zeros(starts[-1], np.int32) if types is None else types
            types[start + request.message.seconds[number] : end] = 1
    return types
