"""``/openapi.json``: FastAPI's description of the routes and requests, with the answers and errors that we give."""

from typing import Any

import msgspec
from fastapi import FastAPI

from trimaran.base.sampling import RANGES
from trimaran.server.anthropic.answers import Error, Event, Message, TokenCount, is_theirs
from trimaran.server.batches.described import operations
from trimaran.server.batches.shapes import Batch, BatchList, FileDeleted, FileList, FileObject
from trimaran.server.errors import ErrorEnvelope
from trimaran.server.openai import answers
from trimaran.server.openai.embeddings import EmbeddingList
from trimaran.server.openai.scoring import Reranking, ScoreList
from trimaran.server.openai.tokenize import Detokenized, Tokenized
from trimaran.server.scoring import RERANK, SCORE

_REF = "#/components/schemas/Answer.{name}"
_JSON = "application/json"
ERRORS = {  # of any route; those of ``POST`` come on top
    "401": "no API key, or a wrong one",
    "404": "no such route, model, file, batch or response",
    "405": "no such method on this route",
    "408": "the request did not arrive in time",
    "413": "the body is too large",
    "500": "a bug, or the model or its cache went wrong",
    "503": "no engine, or too many connections",
}
OF_API = {"400": "the request cannot be served as it is"}
OF_POSTS = OF_API | {
    "429": "too many requests of this key, or in all",
    "504": "the request was not done in time",
}


def describe(app: FastAPI, version: type[msgspec.Struct]) -> None:
    """Has ``app`` describe itself so; ``version`` is what ``/version`` answers."""
    whole: dict[str, type[msgspec.Struct]] = {
        "/v1/chat/completions": answers.ChatCompletion,
        "/v1/completions": answers.Completion,
        "/v1/embeddings": EmbeddingList,
        **dict.fromkeys(RERANK, Reranking),
        **dict.fromkeys(SCORE, ScoreList),
        "/v1/messages": Message,
        "/v1/messages/count_tokens": TokenCount,
        "/tokenize": Tokenized,
        "/detokenize": Detokenized,
        "post /v1/files": FileObject,
        "get /v1/files": FileList,
        "get /v1/files/{file_id}": FileObject,
        "delete /v1/files/{file_id}": FileDeleted,
        "post /v1/batches": Batch,
        "get /v1/batches": BatchList,
        "/v1/batches/{batch_id}": Batch,
        "/v1/batches/{batch_id}/cancel": Batch,
        "/v1/models": answers.ModelList,
        "/v1/models/{model}": answers.Model,
        "/version": version,
    }
    chunks: dict[str, Any] = {
        "/v1/chat/completions": answers.ChatChunk,
        "/v1/completions": answers.Completion,
        "/v1/messages": Event,
    }
    asked = operations()
    types = [*whole.values(), *chunks.values(), ErrorEnvelope, Error]
    refs, components = msgspec.json.schema_components(types, ref_template=_REF)
    by_type = dict(zip(types, refs, strict=True))
    plain = FastAPI.openapi.__get__(app)

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is not None:
            return app.openapi_schema
        document: dict[str, Any] = plain()
        schemas = document["components"]["schemas"]
        for unused in ("HTTPValidationError", "ValidationError"):  # FastAPI's own, which nobody gets
            schemas.pop(unused, None)
        for name in ("ChatRequest", "CompletionRequest", "MessagesRequest"):
            if name in schemas:  # an encoder has no messages
                _bound(schemas[name]["properties"])
        schemas |= {f"Answer.{name}": schema for name, schema in components.items()}
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{}, {"key": []}]  # a server may have been started without keys
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                told = whole.get(f"{method} {path}", whole.get(path))
                content: dict[str, Any] = {_JSON: {"schema": {} if told is None else by_type[told]}}
                if path in chunks:  # each event's data, but for the last, is one
                    content["text/event-stream"] = {"schema": {"type": "string"}, "x-event": by_type[chunks[path]]}
                elif path == "/v1/responses":
                    content["text/event-stream"] = {"schema": {"type": "string"}}
                if path == "/metrics":
                    content = {"text/plain": {"schema": {"type": "string"}}}
                elif path == "/v1/files/{file_id}/content":
                    content = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
                operation |= asked.get(f"{method} {path}", {})
                error = {_JSON: {"schema": by_type[Error if is_theirs(path) else ErrorEnvelope]}}
                said = ERRORS | (OF_POSTS if method == "post" else {}) | (OF_API if path.startswith("/v1/") else {})
                operation["responses"] = {"200": {"description": "the answer", "content": content}} | {
                    status: {"description": text, "content": error} for status, text in sorted(said.items())
                }
        return document

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's way of changing it


def _bound(properties: dict[str, Any]) -> None:
    """Says of a request's numbers what ``SamplingParams`` will ask of them."""
    ranges = {name: (low, high) for name, low, high in RANGES}
    ranges |= {"max_completion_tokens": ranges["max_tokens"], "top_logprobs": ranges["logprobs"]}
    for name, (low, high) in ranges.items():
        for kind in properties.get(name, {}).get("anyOf", ()):
            if kind["type"] in ("integer", "number"):
                kind.update(minimum=low, maximum=high)
