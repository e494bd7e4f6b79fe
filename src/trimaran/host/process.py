"""Starts an engine worker, talks to it, watches it, and never leaves it behind.

The worker is any module that keeps this contract:

* Its only argument is the address of a ZeroMQ PAIR socket that the host has bound in a private directory.
* Its configuration is the first line of standard input, as JSON. Standard input then stays open for as long as the host
  lives: end of file means that nobody listens any more, and the worker exits at once, whatever it is doing.
* It speaks ``base/messages.py`` in msgpack. A ``Failed`` without an id before ``Started`` says why it cannot start.
* What it writes to standard error is passed on, and its last lines are kept for the error that reports its death.
"""

import asyncio
import contextlib
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import msgspec
import zmq
import zmq.asyncio

from trimaran.base import errors
from trimaran.base.failures import error_of
from trimaran.base.messages import Failed, FromEngine, FromEngineBatch, Started, Stop, ToEngine, ToEngineBatch

STDERR_LINES = 20
DRAIN_MILLISECONDS = 100
KILL_GRACE = 2.0  # seconds between asking and SIGTERM, and between SIGTERM and SIGKILL


@dataclass(frozen=True)
class Exit:
    """How a worker ended: its exit code (negative: the signal that killed it) and its last lines of standard error."""

    code: int
    stderr: tuple[str, ...]

    def error(self) -> errors.EngineDiedError:
        how = f"was killed by {signal.Signals(-self.code).name}" if self.code < 0 else f"exited with code {self.code}"
        said = "".join(f"\n  {line}" for line in self.stderr)
        return errors.EngineDiedError(f"the engine process {how}{said}")


class EngineProcess:
    """One worker process and the socket to it. Use it from one event loop.

    ``start``, then iterate over the object for batches of messages while ``send`` puts others in; ``stop`` ends the
    iteration. When the worker dies unasked, the iteration delivers what had arrived and raises ``EngineDiedError``.
    """

    def __init__(self, config: Mapping[str, Any], *, module: str = "trimaran.engine.worker") -> None:
        """``config`` is what the worker's own configuration class accepts, as JSON values (paths as strings)."""
        self._config = config
        self._module = module
        self._process: asyncio.subprocess.Process | None = None
        self._exit: asyncio.Task[Exit] | None = None
        self._stopping = False
        self._receiving = False
        self._rest: deque[list[FromEngine]] = deque()  # what had arrived and not been consumed when ``stop`` returned
        self._heard = time.monotonic()
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(FromEngineBatch)

    async def start(self, deadline: float = 600.0) -> Started:
        """Starts the worker and returns what it said once it had produced a token.

        Raises the worker's own typed error when it refuses its configuration or model, and ``EngineDiedError`` when it
        dies or is not ready within ``deadline`` seconds. After an error nothing is left running.
        """
        assert self._process is None, "an EngineProcess starts once"
        self._directory = tempfile.TemporaryDirectory(prefix="trimaran-")  # mode 0700: only this user may connect
        self._context = zmq.asyncio.Context(io_threads=1)
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.setsockopt(zmq.LINGER, 0)
        address = f"ipc://{self._directory.name}/engine"
        try:
            self._socket.bind(address)
            # Its own session: Ctrl-C in a terminal reaches the host alone, which then decides how to stop.
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                self._module,
                address,
                stdin=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=1 << 20,
                start_new_session=True,
            )
            self._exit = asyncio.create_task(self._watch(self._process))
            assert self._process.stdin is not None
            self._process.stdin.write(msgspec.json.encode(self._config) + b"\n")
            return await self._first_message(deadline)
        except BaseException:
            await self._kill()
            self._close()
            raise

    async def send(self, *messages: ToEngine) -> None:
        """Sends messages in this order; raises ``EngineDiedError`` when the worker is gone."""
        if self._exit is None or self._exit.done():
            raise self._death()
        sent = asyncio.ensure_future(self._socket.send(self._encoder.encode(ToEngineBatch(list(messages)))))
        if sent.done():
            return
        try:  # the worker is far behind, and may die before it catches up
            await asyncio.wait({sent, self._exit}, return_when=asyncio.FIRST_COMPLETED)
            if not sent.done():
                raise self._death()
        finally:
            sent.cancel()

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
        self._close()
        if self._stopping:
            raise StopAsyncIteration
        raise self._death()

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
        if not self._receiving:  # else the consumer reads to the end and closes
            while (batch := await self._receive()) is not None:
                self._rest.append(batch)
            self._close()
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
        return time.monotonic() - self._heard

    async def _first_message(self, deadline: float) -> Started:
        try:
            batch = await asyncio.wait_for(self._receive(), deadline)
        except TimeoutError:
            raise errors.EngineDiedError(f"the engine was not ready within {deadline:g} seconds") from None
        if batch is None:
            raise self._death()
        match batch:
            case [Started() as started]:
                return started
            case [Failed() as refusal]:
                raise error_of(refusal)
        raise AssertionError(f"the worker began with {batch!r}")

    async def _receive(self) -> list[FromEngine] | None:
        """The next batch; None once the worker has ended and everything that it sent has been read."""
        if self._context.closed:
            return self._rest.popleft() if self._rest else None
        ended = self.exited
        while not ended.done():
            arrival = asyncio.ensure_future(self._socket.poll())
            try:
                await asyncio.wait({arrival, ended}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                arrival.cancel()
            if arrival.done() and not arrival.cancelled():
                return await self._read()
        # What the worker flushed before its end may still be on its way through ZeroMQ's own thread.
        return await self._read() if await self._socket.poll(DRAIN_MILLISECONDS) else None

    async def _read(self) -> list[FromEngine]:
        batch = self._decoder.decode(await self._socket.recv())
        self._heard = time.monotonic()
        return batch.messages

    async def _watch(self, process: asyncio.subprocess.Process) -> Exit:
        assert process.stderr is not None
        tail: deque[str] = deque(maxlen=STDERR_LINES)
        relay = asyncio.create_task(_relay(process.stderr, tail))
        code = await process.wait()
        await asyncio.wait({relay}, timeout=1.0)  # a grandchild may hold the pipe open
        relay.cancel()
        return Exit(code, tuple(tail))

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

    def _death(self) -> errors.EngineDiedError:
        if self._exit is not None and self._exit.done():
            return self._exit.result().error()
        return errors.EngineDiedError("the engine process is not running")

    def _close(self) -> None:
        if not self._context.closed:
            self._context.destroy(linger=0)
            self._directory.cleanup()


async def _relay(stream: asyncio.StreamReader, tail: deque[str]) -> None:
    async for line in stream:
        text = line.decode(errors="replace").rstrip("\n")
        tail.append(text)
        print(text, file=sys.stderr, flush=True)
