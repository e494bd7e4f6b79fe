"""The host against the real worker on the null executor, and against workers that misbehave."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable

import psutil
import pytest
import uvloop

from trimaran.base.errors import ConfigError, EngineDiedError
from trimaran.base.messages import Beat, Cancel, Failed, FromEngine, Submit, Tokens
from trimaran.base.sampling import SamplingParams
from trimaran.host.process import EngineProcess

NULL = {"executor": "null", "null": {"vocab": 300, "context": 4096}}
SLOW = {"executor": "null", "null": {"vocab": 300, "context": 4096, "step_seconds": 0.01}}


@contextlib.asynccontextmanager
async def engine(config: dict = NULL) -> AsyncIterator[EngineProcess]:
    process = EngineProcess(config)
    await process.start(60)
    try:
        yield process
    finally:
        await process.stop(0)


async def until_end(process: EngineProcess, *ids: str) -> list[FromEngine]:
    """Every message up to the one that ends the last of ``ids``."""
    open_ids, messages = set(ids), []
    async for batch in process:
        for message in batch:
            messages.append(message)
            if isinstance(message, Failed) or (isinstance(message, Tokens) and message.finish):
                open_ids.discard(message.id)
        if not open_ids:
            return messages
    raise AssertionError("the engine stopped")


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - another process cannot set an event
            await asyncio.sleep(0.02)


async def test_requests_are_answered_in_order_and_bad_ones_named():
    async with engine() as process:
        await process.send(
            Submit("a", [1, 2], SamplingParams(temperature=0, max_tokens=5)), Submit("b", [], SamplingParams())
        )
        messages = await until_end(process, "a", "b")
        tokens = [m for m in messages if isinstance(m, Tokens)]
        assert [len(m.tokens) for m in tokens] == [1] * 5
        assert tokens[-1].finish == "length"
        [failure] = [m for m in messages if isinstance(m, Failed)]
        assert (failure.id, failure.kind, failure.param) == ("b", "RequestError", "prompt")


def test_it_works_in_the_loop_that_the_server_uses():
    async def answer() -> list[FromEngine]:
        async with engine() as process:
            await process.send(Submit("a", [1], SamplingParams(temperature=0, max_tokens=2)))
            return await until_end(process, "a")

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(answer())


async def test_start_tells_what_was_loaded():
    process = EngineProcess(NULL | {"max_model_len": 100, "served_name": "nobody"})
    started = await process.start(60)
    assert (started.model, started.context, started.vocab, started.executor) == ("nobody", 100, 300, "null")
    assert await process.stop(0) == 0


async def test_a_pinned_worker_runs_its_loop_on_the_first_core():
    async with engine(NULL | {"pin_threads": True}) as process:
        assert os.sched_getaffinity(process.pid) == {min(os.sched_getaffinity(0))}


async def test_an_idle_loop_beats():
    async with engine() as process:
        beats = 0
        async for batch in process:
            beats += sum(isinstance(message, Beat) for message in batch)
            if beats == 3:
                break
        assert process.silent_for < 1


async def test_cancel_ends_a_request_and_frees_its_pages():
    async with engine(SLOW) as process:
        await process.send(Submit("a", [1] * 100, SamplingParams()))
        async for batch in process:
            if any(isinstance(message, Tokens) for message in batch):
                break
        await process.send(Cancel("a"))
        messages = await until_end(process, "a")
        assert messages[-1].finish == "cancelled"
        async for batch in process:
            beats = [message for message in batch if isinstance(message, Beat)]
            if beats:
                [pages] = beats[-1].pages
                assert pages.free + pages.cached == pages.total
                break


async def test_stop_lets_requests_finish_within_the_deadline_and_refuses_new_ones():
    process = EngineProcess(SLOW)
    await process.start(60)
    await process.send(
        Submit("short", [1], SamplingParams(max_tokens=20)), Submit("long", [1], SamplingParams(max_tokens=4000))
    )
    await asyncio.sleep(0.05)
    stopping = asyncio.create_task(process.stop(0.6))
    await asyncio.sleep(0.05)
    await process.send(Submit("late", [1], SamplingParams()))
    ends = {}
    async for batch in process:
        for message in batch:
            if isinstance(message, Failed):
                ends[message.id] = message.kind
            elif isinstance(message, Tokens) and message.finish:
                ends[message.id] = message.finish
    assert await stopping == 0
    assert ends == {"short": "length", "long": "cancelled", "late": "EngineDiedError"}
    assert await process.stop() == 0, "stop is idempotent"


async def test_a_killed_engine_is_reported():
    process = EngineProcess(SLOW)
    await process.start(60)
    await process.send(Submit("a", [1], SamplingParams()))
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(EngineDiedError, match="SIGKILL"):
        await until_end(process, "a")
    assert (await process.exited).code == -signal.SIGKILL
    with pytest.raises(EngineDiedError, match="SIGKILL"):
        await process.send(Submit("b", [1], SamplingParams()))


async def test_sigterm_cancels_what_runs_and_exits_cleanly():
    process = EngineProcess(SLOW)
    await process.start(60)
    await process.send(Submit("a", [1], SamplingParams()))
    await asyncio.sleep(0.1)
    os.kill(process.pid, signal.SIGTERM)
    end = (await until_end(process, "a"))[-1]
    assert isinstance(end, Tokens)
    assert end.finish == "cancelled"
    with pytest.raises(EngineDiedError, match="code 0"):
        await until_end(process, "never")


async def test_a_worker_that_refuses_its_configuration_says_why():
    process = EngineProcess({"executor": "null", "max_num_seq": 1})
    with pytest.raises(ConfigError, match="max_num_seq"):
        await process.start(60)
    assert gone(process.pid)


WORKERS = {
    "crashes": "import sys; print('first', file=sys.stderr); sys.exit('out of luck')",
    "hangs": "import time; time.sleep(600)",
    "deaf": """
import socket, sys, time, msgspec
from trimaran.base.frames import frame
from trimaran.base.messages import FromEngineBatch, Started
line = socket.socket(fileno=int(sys.argv[1]))
started = Started("m", "", 1, 1, "", "", "", "", 1, [], 16, 0, 0, "")
line.sendall(frame(msgspec.msgpack.encode(FromEngineBatch([started]))))
time.sleep(600)
""",
    "talks": """
import socket, sys, msgspec
from trimaran.base.frames import frame
from trimaran.base.messages import Beat, FromEngineBatch, Started
line = socket.socket(fileno=int(sys.argv[1]))
for message in [Started("m", "", 1, 1, "", "", "", "", 1, [], 16, 0, 0, ""), *[Beat()] * 300]:
    line.sendall(frame(msgspec.msgpack.encode(FromEngineBatch([message]))))
sys.exit(3)
""",
    "closes": """
import os, socket, sys, time, msgspec
from trimaran.base.frames import frame
from trimaran.base.messages import FromEngineBatch, Started
line = socket.socket(fileno=int(sys.argv[1]))
started = Started("m", "", 1, 1, "", "", "", "", 1, [], 16, 0, 0, "")
line.sendall(frame(msgspec.msgpack.encode(FromEngineBatch([started]))))
line.sendall(b"\\xff" * 5 if "NONSENSE" in os.environ else b"")
if "NONSENSE" not in os.environ:
    line.close()
time.sleep(600)
""",
    "ignores_sigterm": "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)",
}


@pytest.fixture
def worker(tmp_path, monkeypatch):
    """Makes a worker module from source and returns its name."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def make(name: str) -> str:
        (tmp_path / f"{name}.py").write_text(WORKERS[name])
        return name

    return make


@pytest.mark.parametrize(("name", "who"), [(None, "process"), ("decode-1", "process decode-1")])
async def test_a_crash_at_start_says_whose_and_shows_its_last_lines(worker, name, who):
    process = EngineProcess({}, module=worker("crashes"), name=name)
    with pytest.raises(EngineDiedError, match=f"the engine {who} exited with code 1\n  first\n  out of luck"):
        await process.start(60)


@pytest.mark.parametrize("name", ["hangs", "ignores_sigterm"])
async def test_a_worker_that_does_not_come_up_is_not_left_behind(worker, monkeypatch, name):
    monkeypatch.setattr("trimaran.host.process.KILL_GRACE", 0.2)
    process = EngineProcess({}, module=worker(name))
    with pytest.raises(EngineDiedError, match=r"not ready within 0\.5 seconds"):
        await process.start(0.5)
    assert gone(process.pid)


async def test_a_cancelled_start_leaves_nothing_behind(worker, monkeypatch):
    monkeypatch.setattr("trimaran.host.process.KILL_GRACE", 0.2)
    process = EngineProcess({}, module=worker("hangs"))
    starting = asyncio.create_task(process.start(60))
    await wait_until(lambda: process._process is not None)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert gone(process.pid)


async def test_sending_to_a_worker_that_does_not_read_ends_with_its_death(worker):
    process = EngineProcess({}, module=worker("deaf"))
    await process.start(60)

    async def send_without_end() -> None:
        while True:
            await process.send(Cancel("x" * 1000))

    sending = asyncio.create_task(send_without_end())
    await asyncio.sleep(0.5)
    assert not sending.done()
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(EngineDiedError, match="SIGKILL"):
        await asyncio.wait_for(sending, 20)
    await process.stop()


async def test_a_worker_that_does_not_read_is_stopped_by_force(worker, monkeypatch):
    monkeypatch.setattr("trimaran.host.process.KILL_GRACE", 0.2)
    process = EngineProcess({}, module=worker("deaf"))
    await process.start(60)
    assert await process.stop(0) == -signal.SIGTERM
    assert gone(process.pid)


@pytest.mark.parametrize("nonsense", [False, True])
async def test_a_worker_that_lives_on_behind_a_closed_or_broken_line_is_ended(worker, monkeypatch, nonsense):
    monkeypatch.setattr("trimaran.host.process.KILL_GRACE", 0.2)
    if nonsense:
        monkeypatch.setenv("NONSENSE", "1")
    process = EngineProcess({}, module=worker("closes"))

    async def hear() -> None:
        await process.start(60)
        await anext(process)

    with pytest.raises(EngineDiedError, match="SIGKILL"):
        await asyncio.wait_for(hear(), 20)
    assert gone(process.pid)


async def test_what_is_too_long_for_one_message_is_sent_in_several(monkeypatch):
    async with engine() as process:
        monkeypatch.setattr("trimaran.host.process.MAX_MESSAGE", 1000)
        requests = [Submit(str(i), [1] * 100, SamplingParams(max_tokens=1)) for i in range(40)]
        await process.send(*requests)
        messages = await until_end(process, *(request.id for request in requests))
        assert {m.id for m in messages if isinstance(m, Tokens)} == {request.id for request in requests}


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, None])
async def test_the_engine_does_not_outlive_its_host(how):
    host = textwrap.dedent(
        """
        import asyncio, sys
        from trimaran.host.process import EngineProcess

        async def main():
            process = EngineProcess({"executor": "null", "null": {"step_seconds": 0.01}})
            await process.start(60)
            print(process.pid, flush=True)
            if len(sys.argv) == 1:
                await asyncio.sleep(600)
            # else: forgets to stop the engine

        asyncio.run(main())
        """
    )
    arguments = [sys.executable, "-c", host] + (["forget"] if how is None else [])
    child = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)  # noqa: ASYNC220
    assert child.stdout is not None
    pid = int(await asyncio.to_thread(child.stdout.readline))
    if how is not None:
        child.send_signal(how)
    await asyncio.to_thread(child.communicate)
    await wait_until(lambda: gone(pid))


async def test_what_a_worker_said_last_is_read_after_its_end(worker):
    process = EngineProcess({}, module=worker("talks"))
    await process.start(60)
    await process.exited
    assert [len(await anext(process)) for _ in range(300)] == [1] * 300
    with pytest.raises(EngineDiedError, match="code 3"):
        await anext(process)


async def test_no_descriptor_is_left_open():
    before = psutil.Process().num_fds()
    async with engine():
        pass
    assert psutil.Process().num_fds() == before
