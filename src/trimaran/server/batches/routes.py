"""The routes of ``/v1/files`` and ``/v1/batches``."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from trimaran.base.errors import RequestError
from trimaran.server.api import Api
from trimaran.server.batches import requests
from trimaran.server.batches.file_store import NewFile
from trimaran.server.batches.requests import BatchRequest, Endpoint
from trimaran.server.batches.runner import Runner
from trimaran.server.batches.shapes import Batch, BatchList, FileDeleted, FileList, FileObject
from trimaran.server.errors import (
    BatchNotKnownError,
    BodyTooLargeError,
    FileNotKnownError,
    StorageError,
)
from trimaran.server.guards import TENANT, discard
from trimaran.server.json_answer import json_answer

UPLOADS = "/v1/files"  # the path whose bodies go to the disk
_BLOCK = 256 * 1024  # bytes of a file that are read at a time


def add_files(api: Api, runner: Runner, body_seconds: float) -> None:
    """Adds the routes of files; an upload must begin to come within ``body_seconds``."""

    @api.post(UPLOADS)
    async def create_file(request: Request) -> Response:
        from trimaran.server.batches.upload import longest_form, receive_form  # which few servers need

        storage, tenant = await runner.open(), request.scope[TENANT].name
        limits = storage.files.limits
        size = longest = longest_form(limits.file_bytes)
        if (announced := request.headers.get("content-length", "")).isdigit():
            size = int(announced)
        if size > longest:
            await discard(request.receive)
            raise BodyTooLargeError(f"the file exceeds the limit of {limits.file_bytes:,} bytes (--max-file-bytes)")
        await storage.run(storage.files.begin, tenant, size)
        path = storage.files.arriving()
        try:
            kind = request.headers.get("content-type", "")
            form = await receive_form(kind, request.receive, path, limits.file_bytes, body_seconds)
            requests.require_purpose(form.fields)
            seconds = requests.kept_seconds(form.fields, limits.seconds)
            new = NewFile(path, form.name or "", "batch", seconds)
            return json_answer(await storage.run(storage.files.keep, tenant, new))
        except BodyTooLargeError:
            await discard(request.receive)
            raise
        except OSError as error:
            raise StorageError(f"{storage.directory}: {error.strerror}") from error
        finally:
            storage.files.end(tenant, size)
            path.unlink(missing_ok=True)

    @api.get(UPLOADS)
    async def list_files(request: Request) -> Response:
        known = ("after", "limit", "order", "purpose")
        page = requests.page(request.query_params.multi_items(), known, default=10_000, most=10_000)
        storage = await runner.open()
        data, more = await storage.run(
            storage.files.list,
            request.scope[TENANT].name,
            purpose=page.purpose,
            after=page.after,
            limit=page.limit,
            newest_first=page.newest_first,
        )
        first, last = _ends(data)
        return json_answer(FileList(data=data, first_id=first, last_id=last, has_more=more))

    @api.get("/v1/files/{file_id}")
    async def get_file(request: Request, file_id: str) -> Response:
        return json_answer(await _file(request, file_id))

    @api.get("/v1/files/{file_id}/content")
    async def get_file_content(request: Request, file_id: str) -> Response:
        file = await _file(request, file_id)
        path = (await runner.open()).files.path(file.id)
        headers = {"content-length": str(file.bytes)}
        return StreamingResponse(_content(path), media_type="application/octet-stream", headers=headers)

    @api.delete("/v1/files/{file_id}")
    async def delete_file(request: Request, file_id: str) -> Response:
        storage = await runner.open()
        if not await storage.run(storage.files.delete, file_id, request.scope[TENANT].name):
            raise _no_file(file_id)
        return json_answer(FileDeleted(id=file_id))

    async def _file(request: Request, file_id: str) -> FileObject:
        storage = await runner.open()
        file = await storage.run(storage.files.get, file_id, request.scope[TENANT].name)
        if file is None:
            raise _no_file(file_id)
        return file


def add_batches(api: Api, runner: Runner, model: str, endpoints: Sequence[Endpoint]) -> None:
    """Adds the routes of batches for ``model``, which answers at ``endpoints``."""

    @api.post("/v1/batches")
    async def create_batch(request: Request, body: BatchRequest) -> Response:
        window = body.window
        body.require_labels()
        if body.endpoint not in endpoints:
            why = f"{model} answers at {' and '.join(endpoints)}, not at {body.endpoint}"
            raise RequestError(why, param="endpoint", code="unsupported_parameter")
        storage = await runner.open()
        now = int(time.time())
        batch = Batch(
            id=f"batch_{secrets.token_hex(12)}",
            endpoint=body.endpoint,
            model=model,
            input_file_id=body.input_file_id,
            completion_window=body.completion_window,
            created_at=now,
            expires_at=now + window,
            metadata=body.metadata,
        )
        kept = body.output_expires_after
        await runner.add(batch, request.scope[TENANT], storage.files.limits.seconds if kept is None else kept.seconds)
        return json_answer(batch)

    @api.get("/v1/batches")
    async def list_batches(request: Request) -> Response:
        page = requests.page(request.query_params.multi_items(), ("after", "limit"), default=20, most=100)
        storage = await runner.open()
        data, more = await storage.run(
            storage.batches.list, request.scope[TENANT].name, after=page.after, limit=page.limit
        )
        first, last = _ends(data)
        return json_answer(BatchList(data=data, first_id=first, last_id=last, has_more=more))

    @api.get("/v1/batches/{batch_id}")
    async def get_batch(request: Request, batch_id: str) -> Response:
        return json_answer(await _batch(request, batch_id))

    @api.post("/v1/batches/{batch_id}/cancel")
    async def cancel_batch(request: Request, batch_id: str) -> Response:
        await _batch(request, batch_id)
        await runner.cancel(batch_id, request.scope[TENANT])
        batch = await _batch(request, batch_id)
        if batch.status not in ("cancelling", "cancelled"):
            raise RequestError(f"{batch_id} is {batch.status} and cannot be cancelled any more", param="batch_id")
        return json_answer(batch)

    async def _batch(request: Request, batch_id: str) -> Batch:
        storage = await runner.open()
        batch = await storage.run(storage.batches.get, batch_id, request.scope[TENANT].name)
        if batch is None:
            raise BatchNotKnownError(f"there is no batch {batch_id!r:.80} to be found", param="batch_id")
        return batch


async def _content(path: Path) -> AsyncIterator[bytes]:
    file = await asyncio.to_thread(path.open, "rb")
    try:
        while block := await asyncio.to_thread(file.read, _BLOCK):
            yield block
    finally:
        file.close()


def _ends(data: Sequence[FileObject] | Sequence[Batch]) -> tuple[str | None, str | None]:
    return (data[0].id, data[-1].id) if data else (None, None)


def _no_file(file_id: str) -> FileNotKnownError:
    return FileNotKnownError(f"there is no file {file_id!r:.80} to be found", param="file_id")
