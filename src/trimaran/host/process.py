"""Starts an engine worker, talks to it, watches it, and never leaves it behind.

The worker is any module that keeps this contract:

* Its argument is the number of a file descriptor: its end of a stream socket to the host, which has no name in any
  file system and so is open to nobody else. Another argument, if there is one, is its name, for who looks at a list of
  processes.
* Its configuration is the first line of standard input, as JSON. Standard input then stays open for as long as the host
  lives: end of file means that nobody listens any more, and the worker exits at once, whatever it is doing.
* It speaks ``base/messages.py`` in msgpack, framed as in ``base/frames.py``. A ``Failed`` without an id before
  ``Started`` says why it cannot start.
* What it writes to standard error is passed on, and its last lines are kept for the error that reports its death.
"""

import asyncio
import contextlib
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import msgspec

from trimaran.base import errors
from trimaran.base.failures import error_of
from trimaran.base.frames import MAX_MESSAGE
from trimaran.base.messages import Failed, FromEngine, FromEngineBatch, Started, Stop, ToEngine, ToEngineBatch
from trimaran.host.line import Line

STDERR_LINES = 20
DRAIN_SECONDS = 1.0  # for what a worker said last; over at once, unless a child of it keeps the line open
KILL_GRACE = 2.0  # seconds between asking and SIGTERM, and between SIGTERM and SIGKILL


@dataclass(frozen=True)
class Exit:
    """How a worker ended: its exit code (negative: the signal that killed it) and its last lines of standard error.

    ``name`` is the worker's, empty where it has none.
    """

    code: int
    stderr: tuple[str, ...]
    name: str = ""

    def error(self) -> errors.EngineDiedError:
        how = f"was killed by {signal.Signals(-self.code).name}" if self.code < 0 else f"exited with code {self.code}"
        said = "".join(f"\n  {line}" for line in self.stderr)
        who = f"the engine process {self.name}".rstrip()
        return errors.EngineDiedError(f"{who} {how}{said}")


class EngineProcess:
    """One worker process and the socket to it. Use it from one event loop.

    ``start``, then iterate over the object for batches of messages while ``send`` puts others in; ``stop`` ends the
    iteration. When the worker dies unasked, the iteration delivers what had arrived and raises ``EngineDiedError``; one
    that closes its line, or says what is no message, is made to die.
    """

    def __init__(
        self, config: Mapping[str, Any], *, module: str = "trimaran.engine.worker", name: str | None = None
    ) -> None:
        """``config`` is what the worker's own configuration class accepts, as JSON values (paths as strings)."""
        self._config = config
        self._name = () if name is None else (name,)
        self._module = module
        self._process: asyncio.subprocess.Process | None = None
        self._exit: asyncio.Task[Exit] | None = None
        self._stopping = False
        self._receiving = False
        self._line: Line | None = None
        self.started: Started | None = None  # what ``start`` has returned
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(FromEngineBatch)

    async def start(self, deadline: float = 600.0) -> Started:
        """Starts the worker and returns what it said once it had produced a token.

        Raises the worker's own typed error when it refuses its configuration or model, and ``EngineDiedError`` when it
        dies or is not ready within ``deadline`` seconds. After an error nothing is left running.
        """
        assert self._process is None, "an EngineProcess starts once"
        ours, theirs = socket.socketpair()
        try:
            _, self._line = await asyncio.get_running_loop().create_unix_connection(Line, sock=ours)
            # Its own session: Ctrl-C in a terminal reaches the host alone, which then decides how to stop.
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                self._module,
                str(theirs.fileno()),
                *self._name,
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=1 << 20,
                start_new_session=True,
            )
            self._exit = asyncio.create_task(self._watch(self._process, self._line))
            assert self._process.stdin is not None
            self._process.stdin.write(msgspec.json.encode(self._config) + b"\n")
            self.started = await self._first_message(deadline)
            return self.started
        except BaseException:
            await self._kill()
            if self._line is not None:
                await self._line.drain(0)
            ours.close()
            raise
        finally:
            theirs.close()

    async def send(self, *messages: ToEngine) -> None:
        """Sends messages in this order; raises ``EngineDiedError`` when the worker is gone."""
        assert self._line is not None, "not started"
        batch = self._encoder.encode(ToEngineBatch(list(messages)))
        if len(batch) > MAX_MESSAGE and len(messages) > 1:
            half = len(messages) // 2
            await self.send(*messages[:half])
            await self.send(*messages[half:])
        elif not await self._line.send(batch):
            raise await self._death()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[FromEngine]:
        """The next batch. Ends after ``stop``, raises ``EngineDiedError`` after a death; one consumer at a time."""
        assert not self._receiving, "one consumer at a time"
        self._receiving = True
        try:
            batch = await self._receive()
        finally:
            self._receiving = False
        if batch is not None:
            return batch
        if self._stopping:
            raise StopAsyncIteration
        raise await self._death()

    async def stop(self, deadline: float = 5.0) -> int:
        """Lets requests finish for ``deadline`` seconds, then cancels them; SIGTERM and SIGKILL follow if need be.

        Returns the exit code. Keep consuming messages meanwhile: the last tokens arrive here too. Idempotent.
        """
        assert self._exit is not None, "stop needs a started process"
        self._stopping = True
        if not self._exit.done():
            with contextlib.suppress(errors.EngineDiedError, TimeoutError):
                await asyncio.wait_for(self.send(Stop(deadline=deadline)), KILL_GRACE)
            await asyncio.wait({self._exit}, timeout=deadline + KILL_GRACE)
        await self._kill()
        return (await self._exit).code

    def kill(self) -> None:
        """Ends a worker that no longer answers, without asking; to its consumer it has died."""
        assert self._process is not None, "not started"
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def exited(self) -> "asyncio.Task[Exit]":
        """Done once the worker has ended, for whatever reason; await it or add a callback."""
        assert self._exit is not None, "not started"
        return self._exit

    @property
    def silent_for(self) -> float:
        """Seconds since the last message; a turning loop beats every ``BEAT_SECONDS``, or after each longer step."""
        assert self._line is not None, "not started"
        return time.monotonic() - self._line.heard

    async def _first_message(self, deadline: float) -> Started:
        try:
            batch = await asyncio.wait_for(self._receive(), deadline)
        except TimeoutError:
            raise errors.EngineDiedError(f"the engine was not ready within {deadline:g} seconds") from None
        if batch is None:
            raise await self._death()
        match batch:
            case [Started() as started]:
                return started
            case [Failed() as refusal]:
                raise error_of(refusal)
        raise AssertionError(f"the worker began with {batch!r}")

    async def _receive(self) -> list[FromEngine] | None:
        """The next batch; None once the worker has ended and everything that it sent has been read."""
        assert self._line is not None, "not started"
        data = await self._line.receive()
        return None if data is None else self._decoder.decode(data).messages

    async def _watch(self, process: asyncio.subprocess.Process, line: Line) -> Exit:
        assert process.stderr is not None
        tail: deque[str] = deque(maxlen=STDERR_LINES)
        relay = asyncio.create_task(_relay(process.stderr, tail))
        code = await process.wait()
        await asyncio.wait({relay}, timeout=1.0)  # a grandchild may hold the pipe open
        relay.cancel()
        await line.drain(DRAIN_SECONDS)
        return Exit(code, tuple(tail), *self._name)

    async def _kill(self) -> None:
        """SIGTERM, then SIGKILL; returns when the process is gone and reaped."""
        if self._process is None or self._exit is None:
            return
        for ask in (self._process.terminate, self._process.kill):
            if not self._exit.done():
                with contextlib.suppress(ProcessLookupError):
                    ask()
                await asyncio.wait({self._exit}, timeout=KILL_GRACE)
        await self._exit

    async def _death(self) -> errors.EngineDiedError:
        """How the worker ended. It has closed the line, so it has ended or is about to, or else is made to."""
        assert self._exit is not None, "not started"
        await asyncio.wait({self._exit}, timeout=KILL_GRACE)
        if not self._exit.done():
            self.kill()
        return (await asyncio.shield(self._exit)).error()


async def _relay(stream: asyncio.StreamReader, tail: deque[str]) -> None:
    async for line in stream:
        text = line.decode(errors="replace").rstrip("\n")
        tail.append(text)
        print(text, file=sys.stderr, flush=True)
