"""The data plane: prompts in, text out, whatever the protocol.

It fans a request out into sequences, sends them to the engine, turns tokens into text, finds stop strings, counts, and
gives everything back when the caller stops listening. Protocols (``openai/``) translate to and from ``Generation`` and
``Piece`` and know nothing of the engine.
"""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from trimaran.base import errors
from trimaran.base.failures import error_of
from trimaran.base.fanout import fan_out
from trimaran.base.messages import Failed, Submit, Tokens
from trimaran.base.sampling import SamplingParams
from trimaran.server.admission import Admission
from trimaran.server.caller import Caller
from trimaran.server.engine import Backend
from trimaran.server.errors import DeadlineError
from trimaran.server.metrics import Metrics
from trimaran.server.reuse import Reuse
from trimaran.text.choice import Choice, Piece, joined
from trimaran.text.tokenizer import Tokenizer

MAX_CHOICES = 128  # sequences of one request: prompts times n
MAX_IDS = 2**17  # in logit_bias or stop_token_ids, times choices: the engine gets a copy for each


@dataclass(frozen=True)
class Limits:
    """What one server takes on: sequences in flight, tokens of context, seconds per request."""

    max_inflight: int  # running and waiting sequences together
    max_running: int
    context: int
    vocab: int
    deadline: float | None = None


@dataclass(frozen=True)
class Generation:
    """A request to continue ``prompts`` (token ids), each ``sampling.n`` times; choice ``p * n + k`` is p's k-th."""

    prompts: tuple[list[int], ...]
    sampling: SamplingParams
    priority: int = 0
    salt: str = ""
    message: bool = False  # the answer is a message, rather than text that goes on from the prompt
    param: str = "prompt"  # the request's field that holds the prompts
    length_param: str = "max_tokens"  # and the one that limits the answers' length
    conversation: bytes | None = None  # of a chat: what names it in ``Reuse``


@dataclass
class Usage:
    """Tokens of a request so far. A prompt counts once, however many choices continue it."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0


class DataPlane(Admission):
    """Admits, runs and ends requests over one engine link. Use it from one event loop."""

    def __init__(self, link: Backend, tokenizer: Tokenizer, limits: Limits, metrics: Metrics) -> None:
        super().__init__(link, metrics, max_inflight=limits.max_inflight, max_running=limits.max_running)
        self.tokenizer = tokenizer
        self.limits = limits
        self.reuse = Reuse(tokenizer, metrics)

    def open(self, generation: Generation, caller: Caller) -> "Run":
        """Checks what ``caller`` asked; raises ``RequestError``.

        The result is an async context manager. Entering it admits the request, or raises ``QueueFullError``,
        ``DrainingError`` or ``EngineDiedError``; leaving it cancels whatever still runs.
        """
        self._check(generation)
        return Run(self, self.link, generation, caller)

    def _check(self, generation: Generation) -> None:
        sampling, limits = generation.sampling, self.limits
        choices = len(generation.prompts) * sampling.n
        most = min(MAX_CHOICES, limits.max_inflight)  # more could never be admitted: not 429, which says "later"
        if choices > most:
            raise errors.RequestError(f"{choices} choices asked for, the limit is {most}", param="n")
        for prompt in generation.prompts:
            if not prompt:
                raise errors.RequestError("the prompt has no tokens", param=generation.param)
            if len(prompt) >= limits.context:
                raise errors.ContextLengthError(
                    f"the prompt has {len(prompt)} tokens, too many for a context of {limits.context} and an answer",
                    param=generation.param,
                )
            if sampling.max_tokens is not None and len(prompt) + sampling.max_tokens > limits.context:
                wanted = f"{len(prompt)} prompt tokens and {generation.length_param} {sampling.max_tokens}"
                raise errors.ContextLengthError(
                    f"{wanted} exceed the context of {limits.context}",
                    param=generation.length_param,
                )
            if not 0 <= min(prompt) <= max(prompt) < limits.vocab:
                raise errors.RequestError(
                    f"prompt token ids must be from 0 to {limits.vocab - 1}", param=generation.param
                )
        for name, ids in (("logit_bias", sampling.logit_bias), ("stop_token_ids", sampling.stop_token_ids)):
            if choices * len(ids) > MAX_IDS:
                raise errors.RequestError(
                    f"{name} names {len(ids)} tokens for each of {choices} choices, together over {MAX_IDS:,}",
                    param=name,
                )
            for token in ids:
                if not 0 <= token < limits.vocab:
                    raise errors.RequestError(f"{name} names token {token}; ids end at {limits.vocab - 1}", param=name)


class Run:
    """One admitted request. ``deliver`` or ``collect`` runs it; ``usage`` is complete after that."""

    def __init__(self, plane: DataPlane, link: Backend, generation: Generation, caller: Caller) -> None:
        sampling = generation.sampling
        self.usage = Usage(prompt=sum(map(len, generation.prompts)))
        self._plane = plane
        self._link = link
        self._caller = caller
        self._n = sampling.n
        self._conversation = generation.conversation if sampling.n == 1 else None
        self._answer: list[int] = []  # of a conversation
        self._submits: list[Submit] = []
        self._choices: dict[str, Choice] = {}  # those that have not ended
        self._mail: list[Tokens | Failed] = []  # what has come and nobody has read: a slow reader finds it all at once
        self._error: errors.TrimaranError | None = None  # comes once the pieces before it have been taken
        self._idle: asyncio.Future[bool] | None = None  # what ``deliver`` waits for while it has nothing to do
        stem = secrets.token_hex(8)
        salt = caller.tenant.salt + generation.salt
        priority = caller.priority(generation.priority)
        for prompt in generation.prompts:
            for one in fan_out(sampling):
                index = len(self._submits)
                name = f"{stem}-{index}"
                submit = Submit(name, prompt, one, priority, salt, caller.session, caller.tenant.name)
                self._submits.append(submit)
                self._choices[name] = Choice(index, plane.tokenizer, sampling, message=generation.message)

    async def __aenter__(self) -> Self:
        self._plane.admit(self, len(self._submits))
        try:
            self._link.submit(self._submits, self)
        except BaseException:
            self._plane.release(self, len(self._submits))
            raise
        self._caller.tenant.spend(self.usage.prompt)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._conversation is not None and not self._choices:
            self._plane.reuse.note(self._conversation, self._submits[0].prompt, self._answer)
        self._link.cancel(self._choices)
        self._plane.release(self, len(self._submits))
        self._caller.tenant.spend(self.usage.completion)
        if self._caller.later:
            return
        self._plane.took(time.perf_counter() - self._caller.arrived)
        if isinstance(error, asyncio.CancelledError):
            self._plane.metrics.cancelled.inc()

    async def deliver(self, take: Callable[[list[Piece]], bool], ready: Callable[[], Awaitable[None]]) -> None:
        """Runs the request to its end; ``take`` gets what has become known, at least one piece at a time.

        It is called as the engine's message arrives, at most once a step and without a task's waking up, which would
        cost more than all that a token needs. When it returns False, ``ready`` is awaited before it is called again.
        Raises the engine's error, what ``take`` raises, or ``DeadlineError``; the request is over then.
        """
        self._take = take
        loop, deadline = asyncio.get_running_loop(), self._plane.limits.deadline
        try:
            async with asyncio.timeout(deadline):
                while self._choices:
                    self._idle = loop.create_future()
                    self._turn()
                    if not await self._idle:
                        await ready()
        except TimeoutError:
            raise DeadlineError(f"the request was not done within {deadline:g} s") from None

    async def collect(self) -> list[Piece]:
        """Runs the request to its end; returns one piece per choice, in order."""
        parts: list[list[Piece]] = [[] for _ in self._choices]

        def take(pieces: list[Piece]) -> bool:
            for piece in pieces:
                parts[piece.choice].append(piece)
            return True

        async def ready() -> None:
            raise AssertionError("it always is")

        async with self:
            await self.deliver(take, ready)
        return [joined(pieces) for pieces in parts]

    def hear(self, messages: list[Tokens | Failed]) -> None:
        self._mail += messages
        self._turn()

    def fail(self, error: errors.TrimaranError) -> None:
        """Ends the request with ``error`` for whoever runs it."""
        self._error = self._error or error
        self._turn()

    def _turn(self) -> None:
        """Hands over what has come if ``deliver`` is idle, and wakes it when it has something to do."""
        idle = self._idle
        if idle is None or idle.done():
            return
        try:
            pieces = self._read()
            on = self._take(pieces) if pieces else True
            if on and self._choices and self._error is not None:
                raise self._error
        except Exception as error:
            idle.set_exception(error)
        else:
            if not on or not self._choices:
                idle.set_result(on)

    def _read(self) -> list[Piece]:
        messages, self._mail = self._mail, []
        now = time.perf_counter()
        pieces = []
        try:
            for message in messages:
                choice = self._choices.get(message.id)
                if choice is None:
                    continue  # text after a stop string, still on its way when we cancelled
                if isinstance(message, Failed):
                    raise error_of(message)
                piece = self._feed(choice, message, now)
                if piece.finish is not None:
                    del self._choices[message.id]
                    self._link.cancel([message.id])
                pieces.append(piece)
        except errors.TrimaranError as error:
            self._error = self._error or error
        return pieces

    def _feed(self, choice: Choice, message: Tokens, now: float) -> Piece:
        if choice.last is None and choice.index % self._n == 0:
            self.usage.cached += message.cached
        if self._conversation is not None:
            self._answer += [token.id for token in message.tokens]
        piece = choice.feed(message)
        self.usage.completion += piece.generated
        if piece.generated and not self._caller.later:
            if choice.last is None:
                self._plane.metrics.first_token.observe(now - self._caller.arrived)
            else:
                self._plane.metrics.inter_token.observe((now - choice.last) / piece.generated)
        choice.last = now
        return piece
