"""The server's end of the line to the engine process: who gets which message, and what happens when the process dies.

When it dies, every open request ends with ``EngineDiedError``, new ones are refused, and a new process is started after
a pause, or the link gives up (``restarts.py``) and the server exits with an error, for its supervisor to see. A process
that says nothing for ``patience`` seconds is stuck, and is made to die.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

from trimaran.base import errors
from trimaran.base.messages import (
    Admit,
    Admitted,
    Beat,
    Cancel,
    Deviated,
    Distrust,
    Embed,
    Embedded,
    Failed,
    FromEngine,
    Handed,
    Prefill,
    Started,
    Submit,
    ToEngine,
    Tokens,
)
from trimaran.host.process import EngineProcess
from trimaran.server.engine_metrics import EngineMetrics
from trimaran.server.restarts import RestartPolicy, Restarts

SILENT_SECONDS = 10.0  # without a Beat for longer, the loop no longer turns
WATCH_SECONDS = 0.5

log = logging.getLogger(__name__)

T = TypeVar("T")


class Listener(Protocol[T]):
    """Whoever waits for what the engine says about some sequences. Both methods return at once and raise nothing."""

    def hear(self, messages: list[T]) -> None:
        """Messages in order: all that one step, or one batch of the engine's, has for this listener."""
        ...

    def fail(self, error: errors.TrimaranError) -> None:
        """Nothing more will come."""
        ...


class Backend(Protocol):
    """What continues prompts: one engine, or pools of them."""

    lost: asyncio.Future[errors.TrimaranError]  # set when it is gone for good

    def submit(self, requests: Iterable[Submit], listener: Listener[Tokens | Failed]) -> None:
        """Sends requests whose messages go to ``listener``; raises ``EngineDiedError`` while nothing can run them.

        Pools wait for a worker that is being started anew.
        """
        ...

    def cancel(self, ids: Iterable[str]) -> None:
        """Ends sequences that nobody waits for any more: their pages are freed, their messages dropped. Idempotent."""
        ...

    def trouble(self) -> str | None:
        """Why no token can be made now, or ``None``."""
        ...

    async def stop(self, deadline: float) -> None:
        """Lets sequences finish for ``deadline`` seconds, cancels the rest and ends all processes."""
        ...


class EngineLink:
    """One engine process at a time, replaced when it dies. ``stop`` comes last."""

    def __init__(
        self,
        process: EngineProcess,
        launch: Callable[[], EngineProcess],
        metrics: EngineMetrics,
        patience: float,
        policy: RestartPolicy,
        *,
        name: str = "engine",
    ) -> None:
        """Takes over ``process``, which has been started; ``launch`` makes others that have not.

        ``patience`` is in seconds, longer than any step.
        """
        self.metrics = metrics
        self.changed: Callable[[], None] = lambda: None  # called when ``up`` or ``deviated`` may be another
        self._name = name
        self._patience = patience
        self._restarts = Restarts(policy)
        self.lost: asyncio.Future[errors.TrimaranError] = asyncio.get_running_loop().create_future()  # set on giving up
        self._launch = launch
        self.process: EngineProcess | None = None
        self._why_down = ""
        self._deviated = ""  # why an engine that runs is not trusted
        self._stopping = False
        self._listeners: dict[str, Listener[Any]] = {}
        self._outbox: list[ToEngine] = []
        self._posted = asyncio.Event()
        self._digest = None if process.started is None else process.started.digest  # of the model that is served
        self._up(process)
        self._supervising = asyncio.create_task(self._supervise(process))
        self._sending = asyncio.create_task(self._send())
        self._watching = asyncio.create_task(self._watch())
        for task in (self._supervising, self._sending, self._watching):
            task.add_done_callback(self._ended)

    @property
    def up(self) -> bool:
        """Whether there is a process that is trusted."""
        return self.process is not None and not self._deviated

    @property
    def returning(self) -> bool:
        """Whether there is no process and a new one is being started, which nobody knows to be doubtful."""
        return self.process is None and not (self._deviated or self._stopping or self.lost.done())

    @property
    def deviated(self) -> bool:
        """Whether there is, or was until a new one is there, a process that is not trusted."""
        return bool(self._deviated)

    def submit(self, requests: Iterable[Submit | Embed | Admit | Prefill], listener: Listener[Any]) -> None:
        """Sends requests whose messages go to ``listener``; raises ``EngineDiedError`` while there is no engine,
        ``CanaryError`` once it is not trusted any more."""
        if self.process is None:
            raise errors.EngineDiedError(self._why_down)
        if self._deviated:
            raise errors.CanaryError(self._deviated)
        for request in requests:
            self._listeners[request.id] = listener
            self._post(request)

    def cancel(self, ids: Iterable[str]) -> None:
        """Ends sequences that nobody waits for any more: their pages are freed, their messages dropped. Idempotent."""
        for id_ in ids:
            if self._listeners.pop(id_, None) is not None:
                self._post(Cancel(id=id_))

    def distrust(self, source: str) -> None:
        """Tells the engine that what the worker ``source`` has computed may be wrong; nothing, where there is none."""
        if self.process is not None:
            self._post(Distrust(source))

    def trouble(self) -> str | None:
        """Why no token can be made now, or ``None`` when the engine has made one and its loop is turning."""
        if self.process is None:
            return self._why_down
        if self._deviated:
            return self._deviated
        if (silent := self.process.silent_for) > SILENT_SECONDS:
            return f"the {self._name} has not answered for {silent:.0f} s"
        return None

    async def stop(self, deadline: float) -> None:
        """Lets sequences finish for ``deadline`` seconds, cancels the rest and ends the process."""
        self._stopping = True
        if self.process is not None:
            await self.process.stop(deadline)
        else:
            self._supervising.cancel()  # it waits between two processes, or for one to start
        self._sending.cancel()
        self._watching.cancel()
        await asyncio.gather(self._supervising, self._sending, self._watching, return_exceptions=True)

    def _post(self, message: ToEngine) -> None:
        self._outbox.append(message)
        self._posted.set()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """No task may end by an error of ours without the server noticing."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("the link to the %s failed", self._name, exc_info=error)
            self._give_up(f"the link to the {self._name} failed")

    def _give_up(self, why: str) -> None:
        if not self.lost.done():
            self.lost.set_result(errors.EngineDiedError(why))

    def _up(self, process: EngineProcess) -> None:
        self.process = process
        self._deviated = ""
        self.metrics.started()
        self.changed()

    def _down(self, why: str) -> None:
        self.process = None
        self._why_down = why
        self.metrics.ended()
        self._outbox.clear()
        listeners, self._listeners = set(self._listeners.values()), {}
        for listener in listeners:
            listener.fail(errors.EngineDiedError("the engine process ended while it worked on this request"))
        self.changed()

    async def _supervise(self, process: EngineProcess) -> None:
        while True:
            born = time.monotonic()
            try:
                await self._receive(process)
            except errors.EngineDiedError as error:
                log.error("%s", error)
            self._down(f"the {self._name} process ended; a new one is being started")
            if self._stopping:
                return
            lived, restarted = time.monotonic() - born, None
            while restarted is None:
                pause = self._restarts.pause_after(lived)
                if pause is None:
                    self._give_up(self._restarts.why(self._name))
                    return
                await asyncio.sleep(pause)
                lived, restarted = 0.0, await self._restart()
            process = restarted

    async def _restart(self) -> EngineProcess | None:
        process = self._launch()
        begun = time.monotonic()
        try:
            started = await process.start()
        except errors.TrimaranError as error:
            log.error("the %s does not start: %s", self._name, error)
            if isinstance(error, errors.CanaryError):  # which casts doubt on the process before too
                self._deviated = str(error)
                self.changed()
            return None
        if self._digest not in (None, started.digest):
            log.error("the model's files have changed: the new %s would serve another model than before", self._name)
            await process.stop(0.0)
            return None
        self.metrics.restarts.inc()
        self.metrics.start_took(started.phases, time.monotonic() - begun)
        self._up(process)
        log.warning("a new %s process (%d) serves", self._name, process.pid)
        return process

    async def _receive(self, process: EngineProcess) -> None:
        async for batch in process:
            self._deliver(batch)

    def _deliver(self, batch: list[FromEngine]) -> None:
        """Hands a batch out, one call a listener."""
        mail: dict[Listener[Any], list[Tokens | Embedded | Failed | Admitted | Handed]] = {}
        for message in batch:
            match message:
                case Tokens() | Embedded() | Failed() | Admitted() | Handed():
                    listener = self._listeners.get(message.id)
                    if listener is None:
                        continue  # cancelled: the end crossed our Cancel
                    if _ends(message):
                        del self._listeners[message.id]
                    mail.setdefault(listener, []).append(message)
                case Beat():
                    self.metrics.observe(message)
                case Deviated(cause=cause, expected=expected, found=found):
                    self._deviated = cause
                    log.critical("%s (expected %s, found %s)", cause, expected, found)
                    self.changed()
                case Started():
                    pass
        for listener, messages in mail.items():
            listener.hear(messages)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            process = self.process
            if process is not None and process.silent_for > self._patience:
                log.error("the %s has not answered for %.0f s; ending it", self._name, process.silent_for)
                process.kill()

    async def _send(self) -> None:
        while True:
            await self._posted.wait()
            self._posted.clear()
            messages, self._outbox = self._outbox, []
            if messages and self.process is not None:
                with contextlib.suppress(errors.EngineDiedError):  # the receiving side reports it
                    await self.process.send(*messages)


def _ends(message: Tokens | Embedded | Failed | Admitted | Handed) -> bool:
    return isinstance(message, Embedded | Failed | Handed) or (
        isinstance(message, Tokens) and message.finish is not None
    )
