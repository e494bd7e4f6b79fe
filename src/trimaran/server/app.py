"""The HTTP face: which route does what, which error becomes which answer, and what wraps it all."""

import logging
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from trimaran.base.errors import TrimaranError
from trimaran.server import errors, metrics
from trimaran.server.anthropic import messages as anthropic
from trimaran.server.anthropic.answers import TokenCount, error_body
from trimaran.server.anthropic.schema import CountRequest, MessagesRequest
from trimaran.server.api import Api
from trimaran.server.batches.requests import Endpoint
from trimaran.server.batches.routes import UPLOADS, add_batches, add_files
from trimaran.server.batches.runner import Runner
from trimaran.server.connection import while_connected
from trimaran.server.dataplane import DataPlane, Run
from trimaran.server.embedding import EmbeddingPlane
from trimaran.server.guards import Admit, LimitTenants, Observe, ReadBody, caller
from trimaran.server.json_answer import json_answer
from trimaran.server.openai import chat, chat_events, completions, embeddings, tokenize
from trimaran.server.openai.embeddings import EmbeddingRequest
from trimaran.server.openai.identity import Identity, ModelCard
from trimaran.server.openai.schema import ChatRequest, CompletionRequest, Generate
from trimaran.server.openai.sse import Events, EventStream
from trimaran.server.openai.tokenize import DetokenizeRequest, TokenizeRequest
from trimaran.server.refused import TEXT, refuse
from trimaran.server.response_store import ResponseStore
from trimaran.server.responses import Responses
from trimaran.server.scoring import RERANK, SCORE, add_scoring
from trimaran.server.tenants import Tenants
from trimaran.server.text_work import TextWork
from trimaran.text.template import ChatTemplate
from trimaran.text.tools.answer_format import AnswerFormat

if TYPE_CHECKING:
    from fastapi import FastAPI

log = logging.getLogger(__name__)

_SCORING = "/v1/rerank and /v1/score"


class Version(msgspec.Struct, frozen=True):
    """What ``/version`` tells: enough to reproduce an answer."""

    version: str
    executor: str
    isa: str
    threads: int
    weight_format: str
    kv_format: str


@dataclass(frozen=True)
class Service:
    """Everything that the routes need."""

    plane: DataPlane
    template: ChatTemplate
    formats: AnswerFormat
    card: ModelCard
    version: Version
    store: ResponseStore


@dataclass(frozen=True)
class EmbeddingService:
    """The same of an encoder."""

    plane: EmbeddingPlane
    card: ModelCard
    version: Version


@dataclass(frozen=True)
class Access:
    """Who may ask, and how much at once."""

    tenants: Tenants
    allowed_origins: tuple[str, ...] = ()
    max_body_bytes: int = 8 * 2**20
    body_seconds: float = 30.0


def create_app(service: Service | EmbeddingService, access: Access, runner: Runner) -> ASGIApp:
    """The complete ASGI application of one server; ``runner`` begins to run batches with it."""
    api = Api("Trimaran", service.version.version, _describe)
    if isinstance(service, Service):  # first: routes are tried in order
        _add_openai(api, service)
        _add_anthropic(api, service)
    else:
        _add_embeddings(api, service)
    add_files(api, runner, access.body_seconds)
    add_batches(api, runner, service.card.names[0], _endpoints(service))
    _add_models(api, service.card)
    _add_probes(api, service)
    _add_errors(api)
    app = api.build()
    runner.begin(app)
    wrapped: ASGIApp = ReadBody(app, access.max_body_bytes, access.body_seconds, streamed=[UPLOADS])
    wrapped = Admit(LimitTenants(wrapped), access.tenants, open_paths=["/health"])
    if access.allowed_origins:
        wrapped = CORSMiddleware(wrapped, access.allowed_origins, allow_methods=["*"], allow_headers=["*"])
    return Observe(wrapped, service.plane.metrics, app.routes)


def _endpoints(service: Service | EmbeddingService) -> Sequence[Endpoint]:
    """Those that lines of a batch may be for."""
    if isinstance(service, Service):
        return "/v1/chat/completions", "/v1/completions", "/v1/responses"
    if service.plane.limits.score is not None:
        return "/v1/rerank", "/v1/score"
    return "/v1/embeddings", "/v1/rerank", "/v1/score"


def _describe(described: "FastAPI") -> None:
    from trimaran.server.openapi import describe

    describe(described, Version)


def _add_probes(api: Api, service: Service | EmbeddingService) -> None:
    @api.get("/health")
    async def health() -> Response:
        """200 while the process serves HTTP, whatever the engine does."""
        return Response(b'{"status":"live"}', media_type="application/json")

    @api.get("/ready")
    async def ready(request: Request) -> Response:
        """200 once a token has been produced and for as long as the engine's loop turns; else 503 with the reason."""
        if (trouble := service.plane.trouble()) is not None:
            return _error(request, errors.http_error(503, trouble))
        return Response(b'{"status":"ready"}', media_type="application/json")

    @api.get("/metrics")
    async def show_metrics() -> Response:
        return Response(service.plane.metrics.text(), media_type=metrics.CONTENT_TYPE)

    @api.get("/version")
    async def version() -> Response:
        return json_answer(service.version)


def _add_openai(api: Api, service: Service) -> None:
    plane = service.plane
    text = TextWork()

    @api.post("/v1/chat/completions")
    async def chat_completions(request: Request, body: ChatRequest) -> Response:
        identity = _identity("chatcmpl", request, body)
        asked = await text.run(request, chat.ask, body, service.template, service.formats, plane)
        run = plane.open(asked.generation, caller(request))
        if body.stream:
            return _stream(run, chat_events.Events(run, body, asked, identity, plane), identity)
        return await _whole(request, chat.whole(run, body, asked, identity, plane), identity)

    @api.post("/v1/completions")
    async def text_completions(request: Request, body: CompletionRequest) -> Response:
        identity = _identity("cmpl", request, body)
        generation = await text.run(request, completions.generation, body, plane)
        run = plane.open(generation, caller(request))
        if body.stream:
            return _stream(run, completions.Events(run, body, identity, plane), identity)
        return await _whole(request, completions.whole(run, body, identity, plane), identity)

    Responses(plane, service.template, service.formats, service.card, service.store).add_to(api)

    @api.post("/tokenize")
    async def tokenize_prompt(request: Request, body: TokenizeRequest) -> Response:
        service.card.require(body.model)
        return json_answer(await text.run(request, tokenize.tokenized, body, service.template, plane))

    @api.post("/detokenize")
    async def detokenize_ids(request: Request, body: DetokenizeRequest) -> Response:
        service.card.require(body.model)
        return json_answer(await text.run(request, tokenize.detokenized, body, plane))

    refuse(api, service.card, ["/v1/embeddings"], "makes text, and no vectors; an encoder has /v1/embeddings")
    refuse(api, service.card, [*RERANK, *SCORE], f"makes text, and no scores; encoders have {_SCORING}")

    def _identity(prefix: str, request: Request, body: Generate) -> Identity:
        identity = service.card.identity(prefix, body.model)
        if labels := body.labels:
            log.debug("%s on %s: %r", identity.id, request.url.path, labels)
        return identity


def _add_anthropic(api: Api, service: Service) -> None:
    plane = service.plane
    text = TextWork()

    @api.post("/v1/messages")
    async def messages(request: Request, body: MessagesRequest) -> Response:
        identity = service.card.identity("msg", body.model)
        asked = await text.run(request, chat.ask, body.asked(), service.template, service.formats, plane)
        run = plane.open(asked.generation, caller(request))
        if body.stream:
            return _stream(run, anthropic.Events(run, asked, identity, plane), identity)
        return await _whole(request, anthropic.whole(run, asked, identity, plane), identity)

    @api.post("/v1/messages/count_tokens")
    async def count_tokens(request: Request, body: CountRequest) -> Response:
        service.card.require(body.model)
        asked = body.chat()
        rendered = await text.run(request, chat.rendered, asked, asked.calling, service.template, plane)
        return json_answer(TokenCount(len(rendered.prompt)))


def _add_embeddings(api: Api, service: EmbeddingService) -> None:
    plane, card = service.plane, service.card
    text = TextWork()
    add_scoring(api, plane, card, _whole)
    if plane.limits.score is not None:
        refuse(api, card, ["/v1/embeddings"], f"scores pairs of texts, and makes no vectors: it has {_SCORING}")
        refuse(api, card, TEXT, f"scores pairs of texts, and makes no text: it has {_SCORING}")
        return
    refuse(api, card, TEXT, f"makes vectors of texts, and no text: it has /v1/embeddings, {_SCORING}")

    @api.post("/v1/embeddings")
    async def make_embeddings(request: Request, body: EmbeddingRequest) -> Response:
        identity = card.identity("embd", body.model)
        texts = await text.run(request, embeddings.token_ids, body, plane.tokenizer)
        return await _whole(request, embeddings.answer(body, texts, plane, identity, caller(request)), identity)


def _add_models(api: Api, card: ModelCard) -> None:
    @api.get("/v1/models")
    async def list_models() -> Response:
        return json_answer(card.list())

    @api.get("/v1/models/{model:path}")
    async def show_model(model: str) -> Response:
        return json_answer(card.entry(model))


def _stream(run: Run, events: Events, identity: Identity) -> Response:
    return EventStream(run, events, [(b"x-request-id", identity.id.encode())])


async def _whole(request: Request, work: Coroutine[Any, Any, msgspec.Struct], identity: Identity) -> Response:
    result = await while_connected(request.receive, work)
    if result is None:
        return Response(status_code=499)  # nobody will read it
    return json_answer(result, {"x-request-id": identity.id})


def _error(request: Request, answer: errors.ErrorAnswer) -> Response:
    request.scope[errors.CODE] = answer.error.code
    body = error_body(request.url.path, answer)
    return Response(body, answer.status, answer.headers, media_type="application/json")


def _add_errors(api: Api) -> None:
    @api.exception_handler(TrimaranError)
    async def ours(request: Request, error: TrimaranError) -> Response:
        return _error(request, errors.answer(error))

    @api.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        what = f"{request.method} {request.url.path}"
        message = {404: f"there is no {what}", 405: f"{what} is not allowed"}.get(error.status_code, str(error.detail))
        return _error(request, errors.http_error(error.status_code, message, headers=dict(error.headers or {})))

    @api.exception_handler(Exception)
    async def bug(request: Request, error: Exception) -> Response:
        return _error(request, errors.answer(error))
