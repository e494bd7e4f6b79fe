"""``/v1/responses`` through the official client: items, streams that add up, what is remembered, and the background."""

from pathlib import Path
from typing import Any

import openai
import pytest

from trimaran.base.errors import ConfigError
from trimaran.kernels.null import NullModel
from trimaran.server.openai.responses_schema import ResponsesRequest
from trimaran.server.response_store import MOST_BYTES, ResponseStore, Stored

from .byte_model import VOCAB
from .running import NAME, Running, eventually, running

TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}


def create(client: openai.OpenAI, given: Any = "hello", **options: Any) -> Any:
    return client.responses.create(model=NAME, input=given, temperature=0, **{"max_output_tokens": 24, **options})


def test_a_whole_response(client: openai.OpenAI) -> None:
    response = create(client, instructions="be brief", metadata={"a": "b"})
    assert (response.object, response.model, response.metadata) == ("response", NAME, {"a": "b"})
    assert response.id.startswith("resp_")
    [item] = response.output
    assert (item.type, item.role, item.status) == ("message", "assistant", response.status)
    assert response.output_text == item.content[0].text != ""
    usage = response.usage
    assert usage.input_tokens > 10
    assert 1 <= usage.output_tokens <= 24
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens


def test_an_answer_that_was_cut_is_incomplete(client: openai.OpenAI, server: Running) -> None:
    body = {"model": NAME, "input": "cut", "max_output_tokens": 1}
    response = server.http.post("/v1/responses", json=body).json()
    assert response["status"] == response["output"][0]["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}


def test_a_stream_adds_up_to_the_whole(client: openai.OpenAI) -> None:
    whole = create(client, "the same")
    events = list(create(client, "the same", stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:-1] == ["response.output_text.done", "response.content_part.done", "response.output_item.done"]
    assert kinds[-1] == f"response.{whole.status}"
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    last = events[-1].response
    assert text == last.output_text == whole.output_text
    assert last.usage == whole.usage.model_copy(update={"input_tokens_details": last.usage.input_tokens_details})
    assert [item.type for item in last.output] == [item.type for item in whole.output]


def test_it_is_the_chat_with_the_same_messages(client: openai.OpenAI) -> None:
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "what"}]
    chat = client.chat.completions.create(model=NAME, messages=messages, temperature=0, max_tokens=24)
    assert create(client, "what", instructions="be brief").output_text == chat.choices[0].message.content


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_goes_on_from_another(client: openai.OpenAI, stream: bool) -> None:
    first = create(client, "one", stream=stream)
    if stream:
        *_, last = first
        first = last.response
    second = create(client, "two", previous_response_id=first.id)
    spelled = create(
        client,
        [
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": first.output_text},
            {"role": "user", "content": [{"type": "input_text", "text": "two"}]},
        ],
    )
    assert second.output_text == spelled.output_text
    assert second.usage.input_tokens == spelled.usage.input_tokens
    assert second.previous_response_id == first.id
    third = create(client, "three", previous_response_id=second.id)
    assert third.usage.input_tokens > second.usage.input_tokens
    items = client.responses.input_items.list(third.id)
    assert [item.type for item in items.data] == ["message"] * 5


def test_a_response_is_found_and_deleted_by_its_id(client: openai.OpenAI) -> None:
    response = create(client)
    found = client.responses.retrieve(response.id)
    assert found.output == response.output
    client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.delete(response.id)


def test_what_shall_not_be_stored_is_not(client: openai.OpenAI) -> None:
    response = create(client, store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)
    with pytest.raises(openai.NotFoundError) as error:
        create(client, previous_response_id=response.id)
    assert error.value.param == "previous_response_id"


def test_a_tenant_finds_its_own_alone(byte_model: Path) -> None:
    keys = {"api_key": ("a" * 20, "b" * 20)}
    with running(byte_model, **keys) as server:
        mine, others = (
            openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0) for key in keys["api_key"]
        )
        with mine, others:
            response = create(mine)
            assert mine.responses.retrieve(response.id).id == response.id
            with pytest.raises(openai.NotFoundError):
                others.responses.retrieve(response.id)


def test_the_background(byte_model: Path) -> None:
    with (
        running(byte_model) as server,
        openai.OpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0) as client,
    ):
        begun = create(client, "later", background=True)
        assert (begun.status, begun.output) == ("in_progress", [])
        eventually(lambda: client.responses.retrieve(begun.id).status != "in_progress")
        assert client.responses.retrieve(begun.id).output_text == create(client, "later").output_text
        long = create(client, "long", background=True, max_output_tokens=1900, extra_body={"seed": 1})
        cancelled = client.responses.cancel(long.id)
        assert cancelled.status in ("cancelled", "completed")
        assert client.responses.retrieve(long.id).status == cancelled.status
        with pytest.raises(openai.BadRequestError, match="has not ended"):
            client.responses.cancel(begun.id)
        eventually(lambda: server.metric("trimaran_sequences_running") == 0)


def test_what_runs_in_the_background_can_be_cut_short_and_forgotten(byte_model: Path) -> None:
    with (
        running(byte_model, null=NullModel(vocab=VOCAB, context=2048, step_seconds=0.005)) as server,
        openai.OpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0) as client,
    ):
        for forget in (False, True):
            said = server.metric("trimaran_inter_token_seconds_count")
            begun = create(client, "long", background=True, max_output_tokens=1900)
            assert [item.content for item in client.responses.input_items.list(begun.id).data] == ["long"]
            with pytest.raises(openai.BadRequestError, match="has not ended") as error:
                create(client, "more", previous_response_id=begun.id)
            assert error.value.param == "previous_response_id"
            eventually(lambda said=said: server.metric("trimaran_inter_token_seconds_count") > said)
            if forget:
                client.responses.delete(begun.id)
                with pytest.raises(openai.NotFoundError):
                    client.responses.retrieve(begun.id)
            else:
                cancelled = client.responses.cancel(begun.id)
                assert client.responses.retrieve(begun.id).to_dict() == cancelled.to_dict()
                assert cancelled.status == "cancelled"
                assert [item.status for item in cancelled.output] == ["incomplete"]
                assert 2 <= cancelled.usage.output_tokens < 1900
            eventually(lambda: server.metric("trimaran_sequences_running") == 0)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [{"role": "user"}]}, None),
        ({"input": [{"type": "function_call_output", "call_id": "x", "output": "y"}]}, None),
        ({"input": [{"type": "item_reference", "id": "x"}]}, None),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, None),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 10**7}, "max_output_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"background": True, "stream": True}, "background"),
        ({"background": True, "store": False}, "store"),
        ({"truncation": "auto"}, "truncation"),
        ({"conversation": "x"}, "conversation"),
        ({"include": ["reasoning.encrypted_content"]}, "include"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "mcp", "server_label": "x"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"name": "look"}]}, "tools[0].type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "tool_choice.type"),
        ({"text": {"format": {"type": "json_schema"}}}, None),
        ({"reasoning": {"effort": "immense"}}, "reasoning.effort"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_what_cannot_be_done_is_refused(server: Running, body: dict[str, Any], param: str | None) -> None:
    answer = server.http.post("/v1/responses", json={"model": NAME, "input": "hello", **body})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert param is None or error["param"] == param, error
    assert "messages" not in error["message"]


def test_built_in_tools_are_refused_by_name(server: Running) -> None:
    body = {"model": NAME, "input": "hello", "tools": [TOOL, {"type": "web_search"}]}
    error = server.http.post("/v1/responses", json=body).json()["error"]
    assert error["message"] == "tools[1].type 'web_search' is not supported; it must be function"
    assert error["code"] == "unsupported_parameter"


def test_a_failing_stream_ends_with_an_error_event(server: Running) -> None:
    body = {"model": NAME, "input": "hello", "stream": True, "previous_response_id": "resp_none"}
    assert server.http.post("/v1/responses", json=body).status_code == 404


def test_the_store_forgets_in_time_and_keeps_within_bounds(tmp_path: Path) -> None:
    now = [0.0]
    file = tmp_path / "responses.sqlite"
    store = ResponseStore(file, 10, lambda: now[0])
    store.put("a", "me", Stored(b"1", b"2"))
    assert store.get("a", "me") == Stored(b"1", b"2")
    assert store.get("a", "you") is None
    assert not store.delete("a", "you")
    now[0] = 9.0
    store.put("b", "me", Stored(b"3", b"4"))
    store.close()
    assert file.stat().st_mode & 0o077 == 0
    store = ResponseStore(file, 10, lambda: now[0])
    now[0] = 11.0
    assert store.get("a", "me") is None
    assert store.get("b", "me") == Stored(b"3", b"4")
    half = bytes(MOST_BYTES // 2)
    store.put("c", "me", Stored(half, b""))
    now[0] = 12.0
    store.put("d", "me", Stored(half, b"x"))
    assert [store.get(name, "me") is None for name in "bcd"] == [True, True, False]
    store.close()
    with pytest.raises(ConfigError, match="--responses-file"):
        ResponseStore(tmp_path / "none" / "x", 10)
    (tmp_path / "text").write_text("no database, but long enough to be none of SQLite's own " * 40)
    with pytest.raises(ConfigError, match="--responses-file"):
        ResponseStore(tmp_path / "text", 10)


def test_calls_and_results_are_one_conversation() -> None:
    items = [
        {"role": "user", "content": "what is there?"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
            "id": "msg_1",
        },
        {
            "type": "function_call",
            "call_id": "c1",
            "name": "look",
            "arguments": "{}",
            "id": "fc_1",
            "status": "completed",
        },
        {"type": "function_call", "call_id": "c2", "name": "look", "arguments": '{"at": "door"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "a room"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "a door"}]},
        {"role": "assistant", "content": "A room with a door."},
        {"role": "assistant", "content": "Really."},
    ]
    request = ResponsesRequest.model_validate({"model": "m", "input": items, "tools": [TOOL], "instructions": "look"})
    messages = request.chat(request.items()).template_messages()
    assert [message["role"] for message in messages] == [
        "system", "user", "assistant", "tool", "tool", "assistant", "assistant",
    ]  # fmt: skip
    assistant = messages[2]
    assert (assistant["reasoning_content"], assistant["content"]) == ("hm", "I look.")
    assert [call["id"] for call in assistant["tool_calls"]] == ["c1", "c2"]
