r"""Runs batches: each line once, behind all other requests, for as long as the batch may take.

    validating -> in_progress -> finalizing -> completed
              \-> failed     \-> expired                     (or from validating)
                             \-> cancelling -> cancelled     (or from validating)

Every state and every answer is on the disk before it is told, so that a server goes on where another one was killed: a
line that has no answer there is asked. What a batch leaves behind appears in one transaction with its end.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine
from itertools import islice
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from starlette.types import ASGIApp

from trimaran.server.admission import Admission
from trimaran.server.batches import lines, outcome
from trimaran.server.batches.asking import Asking
from trimaran.server.batches.batch_store import Known
from trimaran.server.batches.lines import BadLineError, Rules
from trimaran.server.batches.shapes import Batch, Finding, Findings, Status
from trimaran.server.batches.storage import Storage
from trimaran.server.errors import DrainingError, StorageError
from trimaran.server.tenants import Tenant, Tenants

DISK_SECONDS = 5.0  # before a disk that failed is tried again
SWEEP_SECONDS = 60.0
_BLOCK = 64  # lines that are read at a time

P = ParamSpec("P")
T = TypeVar("T")
log = logging.getLogger(__name__)


class _Job:
    """A batch on its way. ``work`` is what a cancel ends; what comes after it is not cancelled."""

    def __init__(self, known: Known) -> None:
        self.known = known
        self.checked = known.batch.request_counts.total > 0  # that its lines are sound
        self.findings: list[Finding] = []
        self.work: asyncio.Task[Status] | None = None


class Runner:
    """One server's. Use it from one event loop."""

    def __init__(
        self,
        storage: Storage,
        plane: Admission,
        tenants: Tenants,
        models: tuple[str, ...],
        *,
        concurrency: int,
        body_bytes: int,
    ) -> None:
        """``models``: the names of the one model that ``plane`` serves; ``body_bytes``: the most of one request.

        At most ``concurrency`` lines are asked at once, other requests that run counted among them.
        """
        self._storage = storage
        self._plane = plane
        self._tenants = tenants
        self._models = models
        self._concurrency = concurrency
        self._body_bytes = body_bytes
        self._metrics = plane.metrics.batches
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # by tenant: whose lines are begun
        self._checking = asyncio.Lock()
        self._jobs: dict[str, _Job] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweeping = False
        self._stopping = False

    def begin(self, app: ASGIApp) -> None:
        """Lines are requests to ``app`` from now on. Goes on with what an earlier server has left, if there is any."""
        self._asking = Asking(app, self._plane, self._concurrency)
        if self._storage.exists:
            self._spawn(self._resume())

    async def stop(self) -> None:
        """Ends all lines that run, which the next server will ask. Idempotent."""
        self._stopping = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """Stops, and gives the folder back."""
        await self.stop()
        await asyncio.to_thread(self._storage.close)

    async def open(self) -> Storage:
        """The storage, ready; raises ``StorageError``."""
        await self._storage.open()
        if not self._sweeping and not self._stopping:
            self._sweeping = True
            self._spawn(self._sweep())
        return self._storage

    async def add(self, batch: Batch, tenant: Tenant, kept_seconds: int) -> None:
        """Takes a new batch on; its files will be kept for so many seconds.

        Raises what ``BatchStore.add`` does, ``StorageError``, ``DrainingError``.
        """
        if self._stopping:
            raise DrainingError("the server is stopping")
        storage = await self.open()
        self._begin(await storage.run(storage.batches.add, batch, tenant.name, kept_seconds))

    async def cancel(self, batch_id: str, tenant: Tenant) -> None:
        """Has a batch end soon, if it has not ended or begun to end; raises ``StorageError``."""
        storage = await self.open()
        job = self._jobs.get(batch_id)
        known = await storage.run(storage.batches.cancelling, batch_id, tenant.name)
        if known is None:
            return
        if job is None:
            self._begin(known)  # one of a model that is not served now
        elif job.work is not None:
            job.work.cancel()

    async def _resume(self) -> None:
        try:
            storage = await self.open()
            found = await storage.run(storage.batches.unfinished)
        except StorageError as error:
            log.warning("batches wait: %s", error)
            return
        for known in found:
            mine = known.batch.model in self._models and self._tenants.apart(known.tenant) is not None
            if mine or known.batch.status == "cancelling" or known.batch.expires_at <= time.time():
                self._begin(known)

    async def _sweep(self) -> None:
        storage = self._storage
        while True:
            try:
                await storage.run(storage.files.forget_expired)
                await storage.run(storage.batches.forget_old, storage.files.limits.seconds)
            except StorageError as error:
                log.warning("%s", error)
            await asyncio.sleep(SWEEP_SECONDS)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _begin(self, known: Known) -> None:
        if known.batch.id not in self._jobs:
            self._jobs[known.batch.id] = job = _Job(known)
            self._metrics.unfinished.set(len(self._jobs))
            self._spawn(self._life(job))

    async def _life(self, job: _Job) -> None:
        try:
            job.work = asyncio.create_task(self._work(job))
            try:
                ended = await job.work
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise  # the server stops
                ended = "cancelled"
            await self._end(job, ended)
        except Exception:
            log.exception("a bug ended the work on %s until the next start", job.known.batch.id)
        finally:
            del self._jobs[job.known.batch.id]
            self._metrics.unfinished.set(len(self._jobs))

    async def _work(self, job: _Job) -> Status:
        """Does what is left to do; how the batch is to end."""
        known, status = job.known, job.known.batch.status
        if status in ("validating", "in_progress") and known.batch.expires_at <= time.time():
            return "expired"
        try:
            async with asyncio.timeout(max(0.0, known.batch.expires_at - time.time())):
                if status == "validating":
                    status = await self._check(job)
                if status == "in_progress":
                    await self._answer_all(job)
        except TimeoutError:
            return "expired"
        if status == "cancelling":
            return "cancelled"
        return "failed" if job.findings else "completed"

    async def _check(self, job: _Job) -> Status:
        """Looks at all lines; what the batch is in then: still validating, if something is wrong with them."""
        async with self._checking:
            try:
                total, job.findings = await asyncio.to_thread(lines.check, self._input(job), self._rules(job))
            except OSError as error:
                job.findings = [_unreadable(error)]
        if job.findings:
            return "validating"
        move = self._storage.batches.move
        status = await self._sure(move, job.known, ("validating",), "in_progress", total=total)
        job.checked = True
        return status

    async def _answer_all(self, job: _Job) -> None:
        """Asks all lines that have no answer; returns when they have one."""
        storage, known = self._storage, job.known
        tenant = self._tenants.apart(known.tenant)
        assert tenant is not None, "batches of others are not begun"
        answered = await self._sure(storage.batches.lines_answered, known)
        async with asyncio.TaskGroup() as group:
            await self._begin_all(job, tenant, answered, group)

    async def _begin_all(self, job: _Job, tenant: Tenant, answered: set[int], group: asyncio.TaskGroup) -> None:
        async with self._turns[tenant.name]:  # of a tenant's batches the first comes first
            async for number, text in self._numbered(job):
                if number not in answered:
                    await self._asking.turn(tenant)
                    group.create_task(self._answer(job, number, text, tenant))

    async def _answer(self, job: _Job, number: int, text: bytes, tenant: Tenant) -> None:
        try:
            try:
                line = lines.parse(text, self._rules(job))
            except BadLineError as error:  # the server was started anew, with other limits or names
                one = outcome.refused(number, text, error.finding)
            else:
                said = await self._asking.ask(line.url, bytes(line.body), tenant)
                one = outcome.answered(number, line.custom_id, said)
            if await self._sure(self._storage.batches.answered, job.known, one):
                self._metrics.requests.labels("completed" if one.completed else "failed").inc()
        finally:
            self._asking.done(tenant)

    async def _end(self, job: _Job, ended: Status) -> None:
        storage, known = self._storage, job.known
        if ended == "completed":
            status = await self._sure(storage.batches.move, known, ("in_progress", "finalizing"), "finalizing")
            ended = "cancelled" if status == "cancelling" else "completed"
        why: outcome.Unanswered | None = None
        if job.checked and (ended == "expired" or ended == "cancelled"):
            why = ended
        left = await self._sure(self._finish, job, ended, why)
        log.info("%s of %s is %s", known.batch.id, known.tenant, ended)
        if why is not None:
            self._metrics.requests.labels(why).inc(left)

    def _finish(self, job: _Job, ended: Status, why: outcome.Unanswered | None) -> int:
        """Writes what the batch leaves; how many lines nobody has answered."""
        batches, files = self._storage.batches, self._storage.files
        made = outcome.write(job.known, batches, files, why, self._body_bytes)
        findings = Findings(data=job.findings) if job.findings else None
        batches.end(
            job.known,
            ended,
            files,
            output=made.output,
            error=made.error,
            unanswered=made.unanswered,
            findings=findings,
        )
        return made.unanswered

    async def _sure(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """``storage.run``, again and again while the disk is full or broken: what has been answered is not lost."""
        while True:
            try:
                return await self._storage.run(work, *args, **kwargs)
            except StorageError as error:
                log.error("batches wait for the disk: %s", error)
                await asyncio.sleep(DISK_SECONDS)

    async def _numbered(self, job: _Job) -> AsyncIterator[tuple[int, bytes]]:
        """All lines; should the file be gone or changed, those before, and ``job.findings`` say it."""
        found = lines.numbered(self._input(job), self._body_bytes)
        try:
            while block := await asyncio.to_thread(lambda: list(islice(found, _BLOCK))):
                for number, text in block:
                    yield number, text
        except OSError as error:
            job.findings = [_unreadable(error)]
        except BadLineError as error:
            job.findings = [error.finding]

    def _input(self, job: _Job) -> Path:
        return self._storage.files.path(job.known.batch.input_file_id)

    def _rules(self, job: _Job) -> Rules:
        return Rules(job.known.batch.endpoint, self._models, self._body_bytes)


def _unreadable(error: OSError) -> Finding:
    return Finding(code="input_file_unreadable", message=f"the input file cannot be read: {error.strerror}")
