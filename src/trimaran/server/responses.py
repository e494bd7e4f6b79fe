"""The routes of ``/v1/responses``: what is remembered, and what is still being answered in the background."""

import asyncio
import logging
from dataclasses import dataclass, replace

import msgspec
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from trimaran.base.errors import RequestError, TrimaranError
from trimaran.server import errors
from trimaran.server.api import Api
from trimaran.server.connection import while_connected
from trimaran.server.dataplane import DataPlane, Run
from trimaran.server.guards import TENANT, caller
from trimaran.server.json_answer import json_answer
from trimaran.server.openai import chat, responses
from trimaran.server.openai.identity import Identity, ModelCard
from trimaran.server.openai.responses_schema import Item, ResponsesRequest, in_our_words
from trimaran.server.openai.sse import EventStream
from trimaran.server.response_store import ResponseStore, Stored
from trimaran.server.tenants import Tenant
from trimaran.server.text_work import TextWork
from trimaran.text.choice import Piece
from trimaran.text.template import ChatTemplate
from trimaran.text.tools.answer_format import AnswerFormat

log = logging.getLogger(__name__)


class ResponseNotFoundError(errors.ModelNotFoundError):
    """No response has this id: it never had, was not stored, has expired, or is another tenant's."""

    code = "response_not_found"


class _ClientEndedError(TrimaranError):
    """Whoever asked for a background response no longer wants it."""


@dataclass(frozen=True)
class _Background:
    """A response that is being made while nobody waits; ``task`` ends once it is stored."""

    tenant: str
    shown: responses.Response
    items: list[Item]
    run: Run
    task: asyncio.Task[None]

    async def end(self) -> None:
        """Ends the run if it has not ended. The response is stored after that, cancelled or complete."""
        self.run.fail(_ClientEndedError("the response was cancelled"))
        await asyncio.wait({self.task})


class Responses:
    """One server's. Use it from one event loop."""

    def __init__(
        self, plane: DataPlane, template: ChatTemplate, formats: AnswerFormat, card: ModelCard, store: ResponseStore
    ) -> None:
        self._plane, self._template, self._formats, self._card, self._store = plane, template, formats, card, store
        self._text = TextWork()
        self._background: dict[str, _Background] = {}

    def add_to(self, api: Api) -> None:
        """Adds the routes."""

        @api.post("/v1/responses")
        async def create_response(request: Request, body: ResponsesRequest) -> HttpResponse:
            if body.background and body.stream:
                why = "background together with stream is not supported; ask for the response by its id"
                raise RequestError(why, param="background", code="unsupported_parameter")
            if body.background and body.store is False:
                raise RequestError("a background response is stored, or nobody could ask for it", param="store")
            tenant: Tenant = request.scope[TENANT]
            identity = self._card.identity("resp", body.model)
            identity = replace(identity, id=identity.id.replace("-", "_"))  # as the OpenAI API writes them
            items = await self._items(body, tenant)
            try:
                asked = await self._text.run(
                    request, chat.ask, body.chat(items), self._template, self._formats, self._plane
                )
                run = self._plane.open(asked.generation, caller(request))
            except RequestError as error:
                raise in_our_words(error) from None
            answering = responses.Answering(run, body, asked, identity, self._plane)
            if body.background:
                return json_answer(await self._start(answering, run, items, body, identity, tenant))
            if body.stream:
                return _Stored(self, run, responses.Events(answering), items, body, tenant)
            whole = await while_connected(request.receive, responses.whole(answering, run))
            if whole is None:
                return HttpResponse(status_code=499)  # nobody will read it
            await self.keep(whole, items, body, tenant)
            return json_answer(whole)

        @api.get("/v1/responses/{response_id}")
        async def get_response(request: Request, response_id: str) -> HttpResponse:
            if request.query_params.get("stream", "false") != "false":
                raise RequestError("a response cannot be streamed once it has begun", param="stream")
            tenant: Tenant = request.scope[TENANT]
            if (running := self._running(response_id, tenant)) is not None:
                return json_answer(running.shown)
            stored = await self._stored(response_id, tenant)
            return HttpResponse(stored.response, media_type="application/json")

        @api.get("/v1/responses/{response_id}/input_items")
        async def list_input_items(request: Request, response_id: str) -> HttpResponse:
            tenant: Tenant = request.scope[TENANT]
            if (running := self._running(response_id, tenant)) is not None:
                items = running.items
            else:
                items = msgspec.json.decode((await self._stored(response_id, tenant)).input)
            data = [{"id": f"item_{number}", **item} for number, item in enumerate(items)]
            ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]}
            return json_answer({"object": "list", "data": data, "has_more": False, **ends})

        @api.post("/v1/responses/{response_id}/cancel")
        async def cancel_response(request: Request, response_id: str) -> HttpResponse:
            tenant: Tenant = request.scope[TENANT]
            if (running := self._running(response_id, tenant)) is None:
                await self._stored(response_id, tenant)
                raise RequestError(
                    "only a background response that has not ended can be cancelled", param="response_id"
                )
            await running.end()
            return HttpResponse((await self._stored(response_id, tenant)).response, media_type="application/json")

        @api.delete("/v1/responses/{response_id}")
        async def delete_response(request: Request, response_id: str) -> HttpResponse:
            tenant: Tenant = request.scope[TENANT]
            if (running := self._running(response_id, tenant)) is not None:
                await running.end()
            if not await asyncio.to_thread(self._store.delete, response_id, tenant.name):
                raise _missing(response_id)
            return json_answer({"id": response_id, "object": "response", "deleted": True})

    async def keep(
        self, response: responses.Response, items: list[Item], body: ResponsesRequest, tenant: Tenant
    ) -> None:
        """Stores a response that has ended, unless the client has asked for it to be forgotten."""
        if body.store is False:
            return
        stored = Stored(msgspec.json.encode(response), msgspec.json.encode(items))
        await asyncio.to_thread(self._store.put, response["id"], tenant.name, stored)

    async def _items(self, body: ResponsesRequest, tenant: Tenant) -> list[Item]:
        """What the answer goes on from: what came before the response that is named, that, and the input."""
        if body.previous_response_id is None:
            return body.items()
        if self._running(body.previous_response_id, tenant) is not None:
            why = f"response {body.previous_response_id!r:.80} has not ended; go on from it once it has"
            raise RequestError(why, param="previous_response_id")
        stored = await self._stored(body.previous_response_id, tenant, param="previous_response_id")
        before: list[Item] = msgspec.json.decode(stored.input)
        answered: list[Item] = msgspec.json.decode(stored.response)["output"]
        return [*before, *answered, *body.items()]

    def _running(self, response_id: str, tenant: Tenant) -> _Background | None:
        running = self._background.get(response_id)
        return running if running is not None and running.tenant == tenant.name else None

    async def _stored(self, response_id: str, tenant: Tenant, param: str = "response_id") -> Stored:
        stored = await asyncio.to_thread(self._store.get, response_id, tenant.name)
        if stored is None:
            raise _missing(response_id, param)
        return stored

    async def _start(
        self,
        answering: responses.Answering,
        run: Run,
        items: list[Item],
        body: ResponsesRequest,
        identity: Identity,
        tenant: Tenant,
    ) -> responses.Response:
        """Admits the run, and has it answered while the client does something else."""
        entered = await run.__aenter__()
        shown = responses.frame(body, identity, "in_progress")

        async def work() -> None:
            try:
                try:
                    await entered.deliver(lambda pieces: _feed(answering, pieces), _nothing)
                finally:
                    await entered.__aexit__(None, None, None)
                result = answering.response()
            except (asyncio.CancelledError, _ClientEndedError):
                result = answering.cut_short("cancelled")
            except Exception as error:
                if not isinstance(error, TrimaranError):
                    log.exception("a background response failed")
                said = errors.answer(error).error
                result = answering.cut_short("failed") | {"error": {"code": said.code, "message": said.message}}
            try:
                await asyncio.shield(self.keep(result, items, body, tenant))
            finally:
                del self._background[identity.id]

        task = asyncio.create_task(work())
        self._background[identity.id] = _Background(tenant.name, shown, items, entered, task)
        return shown


class _Stored(EventStream):
    """A stream whose response is stored before its last event is sent: whoever has that may go on from it."""

    def __init__(
        self,
        responses_: Responses,
        run: Run,
        events: responses.Events,
        items: list[Item],
        body: ResponsesRequest,
        tenant: Tenant,
    ) -> None:
        super().__init__(run, events, [])
        self._keep, self._of, self._items, self._body, self._tenant = responses_.keep, events, items, body, tenant

    async def ended(self) -> None:
        assert self._of.response is not None
        await self._keep(self._of.response, self._items, self._body, self._tenant)


def _feed(answering: responses.Answering, pieces: list[Piece]) -> bool:
    for piece in pieces:
        answering.feed(piece)
    return True


async def _nothing() -> None:
    raise AssertionError("it always is ready")


def _missing(response_id: str, param: str = "response_id") -> ResponseNotFoundError:
    return ResponseNotFoundError(f"there is no response {response_id!r:.80} to be found", param=param)
