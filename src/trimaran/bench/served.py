"""A ``trimaran serve`` of its own for a benchmark: started on a free loopback port, watched, stopped."""

import asyncio
import re
import signal
import sys
from collections import defaultdict
from collections.abc import Sequence
from types import TracebackType

import httpx

from trimaran.base.errors import EngineDiedError
from trimaran.bench.processes import resident_bytes

READY = re.compile(r"serves (\S+) on (http://\S+)/v1")
START_SECONDS = 120
STOP_SECONDS = 30


class Served:
    """``async with Served(model, flags) as server``: the server is ready inside; ``exit_code`` is known after."""

    def __init__(self, model: str, flags: Sequence[str] = ()) -> None:
        self._command = [
            sys.executable,
            "-c",
            "from trimaran.cli import main; main()",
            "serve",
            model,
            "--port",
            "0",
            *flags,
        ]
        self.exit_code: int | None = None

    async def __aenter__(self) -> "Served":
        self._process = await asyncio.create_subprocess_exec(*self._command, stderr=asyncio.subprocess.PIPE)
        self.log: list[str] = []
        try:
            async with asyncio.timeout(START_SECONDS):
                self.name, self.url = await self._read_address()
                self._reader = asyncio.create_task(self._read_log())
                limits = httpx.Limits(max_connections=None)
                self.client = httpx.AsyncClient(base_url=self.url, timeout=None, limits=limits)
                await self._answer_to_ready()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.client.aclose()
        await self._stop()
        await self._reader

    async def metrics(self) -> dict[str, float]:
        """Values of ``/metrics`` by name, added up over labels; no histograms' buckets."""
        text = (await self.client.get("/metrics")).raise_for_status().text
        values: defaultdict[str, float] = defaultdict(float)
        for line in text.splitlines():
            name, _, value = line.rpartition(" ")
            name = name.partition("{")[0]
            if name and name[0] != "#" and not name.endswith("_bucket"):
                values[name] += float(value)
        return values

    def kill(self) -> None:
        """Ends the server's process by SIGKILL; the engine's sees that and ends by itself."""
        self._process.kill()

    @property
    def pid(self) -> int:
        """Of the server; the engine is its child."""
        return self._process.pid

    def resident_bytes(self) -> int | None:
        """Resident memory of the server and its engine process together; None where there is no ``/proc``."""
        return resident_bytes(self._process.pid)

    async def _read_address(self) -> tuple[str, str]:
        while line := await self._read_line():
            if found := READY.search(line):
                return found[1], found[2]
        raise EngineDiedError("the server did not start:\n" + "".join(self.log[-20:]))

    async def _answer_to_ready(self) -> None:
        while self._process.returncode is None:
            try:
                if (await self.client.get("/ready")).status_code == 200:
                    return
            except httpx.ConnectError:
                pass  # the line is printed a moment before the socket listens
            await asyncio.sleep(0.02)
        raise EngineDiedError("the server ended at once:\n" + "".join(self.log[-20:]))

    async def _read_log(self) -> None:
        while await self._read_line():
            pass

    async def _read_line(self) -> str:
        assert self._process.stderr is not None
        line = (await self._process.stderr.readline()).decode(errors="replace")
        if line:
            self.log.append(line)
        return line

    async def _stop(self) -> None:
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self.exit_code = await asyncio.wait_for(self._process.wait(), STOP_SECONDS)
        except TimeoutError:
            self._process.kill()
            self.exit_code = await self._process.wait()
