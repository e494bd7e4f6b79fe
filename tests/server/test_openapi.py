"""The server against its own description, by schemathesis: requests that fit it, and requests that do not."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import Failure, FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tests.models.tiny_bert import BERT, SCORER, write_bert

from trimaran.engine.config import EngineConfig
from trimaran.server.openai.scoring import SIDES
from trimaran.server.options import ServeOptions
from trimaran.server.scoring import RERANK, SCORE

from .running import NAME, Running, running, serving
from .word_tokenizer import write_words

CHECKS: list[Any] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
MEANT = ("prompt", "messages", "input", "query", "documents", "text_1", "text_2")  # what requests are about
OTHER_NAMES = (*RERANK[1:], *SCORE[1:])  # of routes that are tried as it is
EXAMPLES = 20  # of each route that takes a body, and kind


@pytest.fixture(scope="module")
def server(byte_model):
    with running(byte_model, timeout_request=30.0) as server:
        yield server


@pytest.fixture(scope="module", params=["vectors", "scores"])
def encoder(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    write_words(write_bert(folder, BERT if request.param == "vectors" else SCORER))
    engine = EngineConfig(model=str(folder), served_name=NAME, executor="native", max_num_seqs=4, threads=1)
    with serving(folder, ServeOptions(max_num_seqs=4, timeout_request=30.0), engine) as server:
        yield server


@pytest.fixture(scope="module")
def document(server) -> dict[str, Any]:
    return server.http.get("/openapi.json").json()


def each_case(document: dict[str, Any], mode: GenerationMode, check: Callable[[Case], None]) -> None:
    """Calls ``check`` with cases of every route, the same each time."""
    for result in schemathesis.openapi.from_dict(document).get_all_operations():
        operation = result.ok()
        if operation.path in OTHER_NAMES:
            continue
        if mode is GenerationMode.NEGATIVE and not list(operation.body):
            continue  # there is nothing about it that can be wrong

        @settings(
            max_examples=EXAMPLES if operation.method == "post" else 2,
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def run(case: Case) -> None:
            check(case)

        run()


def sensible(case: Case, files: list[str]) -> Case:
    """The case for our model, with three of its optional fields: with all of them some are always refused. A batch has
    a file that there is, and a window that is one; a score is of one pair of sides."""
    if case.operation.label == "POST /v1/batches" and isinstance(case.body, dict) and files:
        for name, value in (("input_file_id", files[-1]), ("completion_window", "24h")):
            if isinstance(case.body.get(name), str):
                case.body[name] = value
    if case.operation.label == "POST /v1/score" and isinstance(case.body, dict):
        whole = [pair for pair in SIDES if all(isinstance(case.body.get(side), str) for side in pair)]
        others = {side for pair in SIDES for side in pair} - set(whole[0] if whole else ())
        case.body = {name: value for name, value in case.body.items() if not whole or name not in others}
    if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
        more = [name for name in case.body if name not in ("model", *MEANT)][:3]
        kept = {name: case.body[name] for name in (*MEANT, *more) if name in case.body}
        case.body = {**kept, "model": "bytes"}
    return case


def answered(server: Running, document: dict[str, Any], mode: GenerationMode) -> Counter[tuple[str, int]]:
    """How often which route answered with which status; fails where an answer is not as described."""
    statuses: Counter[tuple[str, int]] = Counter()
    files: list[str] = []

    def check(case: Case) -> None:
        response = sensible(case, files).call(base_url=server.url, timeout=60)
        case.validate_response(response, checks=CHECKS)
        statuses[case.operation.label, response.status_code] += 1
        if response.status_code == 200 and case.operation.label == "POST /v1/files":
            files.append(response.json()["id"])

    each_case(document, mode, check)
    assert server.http.get("/ready").status_code == 200
    return statuses


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_answers_are_as_described(server: Running, document, mode):
    statuses = answered(server, document, mode)
    assert statuses["POST /v1/completions", 400]
    if mode is GenerationMode.POSITIVE:
        assert statuses["POST /v1/completions", 200]
        assert statuses["GET /v1/models", 200]
        assert statuses["POST /v1/files", 200]
        assert statuses["POST /v1/batches", 200]
        assert statuses["GET /v1/files", 200]


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_answers_of_encoders_are_as_described(encoder: Running, mode):
    document = encoder.http.get("/openapi.json").json()
    own = ("/v1/embeddings", "/v1/rerank", "/v1/score")  # the others are those of any server
    document["paths"] = {path: document["paths"][path] for path in own}
    statuses = answered(encoder, document, mode)
    for path in own[1:]:
        assert statuses[f"POST {path}", 400]
        assert statuses[f"POST {path}", 200] or mode is GenerationMode.NEGATIVE


def test_a_wrong_description_is_seen(server, document):
    """That the checks can fail."""
    schema = schemathesis.openapi.from_dict(document)
    case = schema["/v1/models"]["get"].Case()
    response = case.call(base_url=server.url)
    case.validate_response(response, checks=CHECKS)
    document["components"]["schemas"]["Answer.Model"]["properties"]["id"] = {"type": "integer"}
    wrong = schemathesis.openapi.from_dict(document)["/v1/models"]["get"].Case()
    with pytest.raises((FailureGroup, Failure)) as caught:
        wrong.validate_response(response, checks=CHECKS)
    assert "violates schema" in repr(caught.value) or "violates schema" in str(caught.value.exceptions)


def test_numbers_are_described_with_their_ranges(document):
    properties = document["components"]["schemas"]["ChatRequest"]["properties"]
    number = {"type": "number", "minimum": 0.0, "maximum": 100.0}
    assert properties["temperature"]["anyOf"] == [number, {"type": "null"}]
    assert properties["top_logprobs"]["anyOf"][0] == {"type": "integer", "minimum": 0, "maximum": 20}
    assert properties["logprobs"]["anyOf"][0] == {"type": "boolean"}


def test_every_error_is_described(server, document):
    envelope = document["components"]["schemas"]["Answer.ErrorEnvelope"]
    assert envelope["required"] == ["error"]
    for operations in document["paths"].values():
        for method, operation in operations.items():
            assert {"200", "401", "503"} <= set(operation["responses"])
            assert ("429" in operation["responses"]) == (method == "post")
    assert "HTTPValidationError" not in document["components"]["schemas"]
    assert httpx.get(server.url + "/nowhere").status_code == 404
