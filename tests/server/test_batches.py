"""``/v1/batches`` through the official client: each line is answered as a request is, in the order of the file."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from trimaran.kernels.null import NullModel

from .batching import CHAT, TEXT, begun, client_of, ended, line, results, texts, until, upload
from .byte_model import VOCAB
from .running import NAME, Running, eventually, running

SLOW = NullModel(vocab=VOCAB, context=2048, step_seconds=0.005)


def test_lines_are_answered_as_requests_are(client: openai.OpenAI) -> None:
    asked = [{"role": "user", "content": f"What is {number}?"} for number in range(40)]
    options = {"max_tokens": 24, "temperature": 0, "logprobs": True}
    lines = [line(f"id-{number}", CHAT, messages=[one], **options) for number, one in enumerate(asked)]
    made = begun(client, lines, CHAT, metadata={"what": "test"})
    assert (made.object, made.status, made.endpoint, made.model) == ("batch", "validating", CHAT, NAME)
    assert made.id.startswith("batch_")
    assert made.expires_at == made.created_at + 24 * 3600
    batch = ended(client, made.id)
    assert (batch.status, batch.error_file_id, batch.errors) == ("completed", None, None)
    assert batch.metadata == {"what": "test"}
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (40, 40, 0)
    assert batch.created_at <= batch.in_progress_at <= batch.finalizing_at <= batch.completed_at
    output = client.files.retrieve(batch.output_file_id)
    assert (output.purpose, output.filename) == ("batch_output", f"{batch.id}_output.jsonl")
    answers = results(client, batch.output_file_id)
    assert [answer["custom_id"] for answer in answers] == [f"id-{number}" for number in range(40)]
    assert len({answer["id"] for answer in answers}) == 40
    tokens = 0
    for one, answer in zip(asked, answers, strict=True):
        assert (answer["error"], answer["response"]["status_code"]) == (None, 200)
        body = answer["response"]["body"]
        assert answer["response"]["request_id"] == body["id"]
        alone = client.chat.completions.create(model=NAME, messages=[one], **options)  # type: ignore[call-overload]
        assert body["choices"] == alone.to_dict()["choices"]
        tokens += body["usage"]["total_tokens"]
    assert batch.usage.total_tokens == tokens == batch.usage.input_tokens + batch.usage.output_tokens


def test_bad_requests_are_errors_of_their_lines(client: openai.OpenAI, server: Running) -> None:
    good, warm, unknown = texts(3)
    warm["body"]["temperature"] = 1000
    unknown["body"]["temprature"] = 1
    batch = ended(client, begun(client, [warm, good, unknown]).id)
    assert batch.status == "completed"
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (3, 1, 2)
    assert [answer["custom_id"] for answer in results(client, batch.output_file_id)] == [good["custom_id"]]
    errors = results(client, batch.error_file_id)
    assert [error["custom_id"] for error in errors] == [warm["custom_id"], unknown["custom_id"]]
    for error, asked in zip(errors, (warm, unknown), strict=True):
        assert error["response"]["status_code"] == 400
        alone = server.http.post(TEXT, json=asked["body"])
        assert error["response"]["body"] == alone.json()


def test_completions_and_responses(client: openai.OpenAI) -> None:
    batch = ended(client, begun(client, texts(3, n=2)).id)
    assert [len(one["response"]["body"]["choices"]) for one in results(client, batch.output_file_id)] == [2, 2, 2]
    lines = [line("r", "/v1/responses", input="hello", temperature=0, max_output_tokens=24)]
    batch = ended(client, begun(client, lines, "/v1/responses").id)
    [answer] = results(client, batch.output_file_id)
    alone = client.responses.create(model=NAME, input="hello", temperature=0, max_output_tokens=24)
    body = answer["response"]["body"]
    assert body["output"][0]["content"][0]["text"] == alone.output_text
    assert client.responses.retrieve(body["id"]).output_text == alone.output_text
    assert batch.usage.output_tokens == body["usage"]["output_tokens"]


GOOD = texts(1)[0]


@pytest.mark.parametrize(
    ("bad", "code", "param"),
    [
        (b"{", "invalid_json_line", None),
        (b"\xff", "invalid_json_line", None),
        (b"[]", "invalid_type", None),
        ({**GOOD, "custom_id": "line 0"}, "duplicate_custom_id", "custom_id"),
        ({**GOOD, "custom_id": 1}, "invalid_type", "custom_id"),
        ({**GOOD, "custom_id": ""}, "invalid_value", "custom_id"),
        ({**GOOD, "method": "GET"}, "invalid_method", "method"),
        ({**GOOD, "url": CHAT}, "invalid_url", "url"),
        ({**GOOD, "priority": 1}, "unknown_parameter", "priority"),
        ({name: value for name, value in GOOD.items() if name != "body"}, "missing_required_parameter", "body"),
        ({**GOOD, "body": {"prompt": "x"}}, "missing_required_parameter", "body.model"),
        ({**GOOD, "body": {"model": 3}}, "invalid_type", "body.model"),
        ({**GOOD, "body": "x"}, "invalid_type", "body"),
        ({**GOOD, "body": {"model": "gpt-4"}}, "model_not_found", "body.model"),
        ({**GOOD, "body": {**GOOD["body"], "stream": True}}, "unsupported_parameter", "body.stream"),
        ({**GOOD, "body": {**GOOD["body"], "prompt": "x" * 9_000_000}}, "line_too_long", None),
    ],
)
def test_what_is_wrong_with_a_file_is_told_by_line(client: openai.OpenAI, bad: Any, code: str, param: str) -> None:
    batch = ended(client, begun(client, [GOOD, b"", bad]).id)
    assert batch.status == "failed"
    assert batch.failed_at >= batch.created_at
    assert (batch.output_file_id, batch.error_file_id, batch.request_counts.total) == (None, None, 0)
    [finding] = batch.errors.data
    assert (finding.code, finding.param, finding.line) == (code, param, 3)


def test_an_empty_file_and_one_with_many_errors(client: openai.OpenAI) -> None:
    [finding] = ended(client, begun(client, [b"", b" "]).id).errors.data
    assert finding.code == "empty_file"
    batch = ended(client, begun(client, [b"{"] * 300).id)
    assert [finding.line for finding in batch.errors.data] == list(range(1, 101))


def test_an_alias_of_the_model_and_a_file_of_windows(client: openai.OpenAI) -> None:
    lines = texts(2)
    lines[1]["body"]["model"] = "alias"
    content = "\ufeff" + "\r\n".join(map(json.dumps, lines)) + "\r\n"
    file = client.files.create(file=("input.jsonl", content.encode()), purpose="batch")
    made = client.batches.create(input_file_id=file.id, endpoint=TEXT, completion_window="24h")
    assert ended(client, made.id).request_counts.completed == 2


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"endpoint": "/v1/embeddings"}, "endpoint"),
        ({"endpoint": "/v1/images/generations"}, "endpoint"),
        ({"completion_window": "soon"}, "completion_window"),
        ({"completion_window": "31d"}, "completion_window"),
        ({"metadata": {"k" * 65: "v"}}, "metadata"),
        ({"metadata": {str(number): "v" for number in range(17)}}, "metadata"),
        ({"metadata": {"k": 1}}, "metadata.k"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after.seconds"),
        ({"extra_body": {"window": 1}}, "window"),
    ],
)
def test_a_batch_that_cannot_be_is_refused_by_name(client: openai.OpenAI, change: Any, param: str) -> None:
    asked = {"input_file_id": upload(client, texts(1)), "endpoint": TEXT, "completion_window": "24h"}
    with pytest.raises(openai.BadRequestError) as caught:
        client.batches.create(**{**asked, **change})
    assert caught.value.param == param


def test_an_input_is_a_file_of_ones_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.batches.create(input_file_id="file-none", endpoint=TEXT, completion_window="24h")
    assert (caught.value.param, caught.value.code) == ("input_file_id", "file_not_found")
    output = ended(client, begun(client, texts(1)).id).output_file_id
    with pytest.raises(openai.BadRequestError) as refused:
        client.batches.create(input_file_id=output, endpoint=TEXT, completion_window="24h")
    assert refused.value.param == "input_file_id"


def test_lists_come_in_pages(client: openai.OpenAI) -> None:
    made = [ended(client, begun(client, texts(1)).id).id for _ in range(3)]
    listed = client.batches.list(limit=2)
    assert [batch.id for batch in listed.data] == made[:0:-1]
    assert listed.has_more
    assert made == [batch.id for batch in listed][:3][::-1], "over several pages"
    for query in ({"after": "batch_none"}, {"limit": 101}):
        with pytest.raises(openai.BadRequestError):
            client.batches.list(**query)
    with pytest.raises(openai.NotFoundError):
        client.batches.retrieve("batch_none")


def test_outputs_expire_when_the_client_says(client: openai.OpenAI) -> None:
    made = begun(client, texts(1), output_expires_after={"anchor": "created_at", "seconds": 3600})
    output = client.files.retrieve(ended(client, made.id).output_file_id)
    assert output.expires_at == output.created_at + 3600


@pytest.fixture
def slow(byte_model: Path) -> Iterator[Running]:
    with running(byte_model, null=SLOW, max_num_seqs=2, batch_concurrency=2) as server:
        yield server


def test_a_batch_is_cancelled(slow: Running) -> None:
    with client_of(slow) as client:
        lines = texts(2) + texts(6, max_tokens=1500)[2:]
        made = begun(client, lines)
        until(client, made.id, lambda batch: batch.request_counts.completed == 2)
        with pytest.raises(openai.BadRequestError) as caught:
            client.files.delete(made.input_file_id)
        assert caught.value.code == "file_in_use"
        assert client.batches.cancel(made.id).status in ("cancelling", "cancelled")
        batch = ended(client, made.id)
        assert batch.status == "cancelled"
        assert batch.created_at <= batch.cancelling_at <= batch.cancelled_at
        assert client.batches.cancel(made.id) == batch, "to cancel it again changes nothing"
        assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (6, 2, 4)
        assert [one["custom_id"] for one in results(client, batch.output_file_id)] == ["line 0", "line 1"]
        for error in results(client, batch.error_file_id):
            assert (error["response"], error["error"]["code"]) == (None, "batch_cancelled")
        client.files.delete(made.input_file_id)
        done = ended(client, begun(client, texts(1)).id)
        with pytest.raises(openai.BadRequestError, match="completed"):
            client.batches.cancel(done.id)
        assert slow.metric("trimaran_batch_requests_total", outcome="cancelled") == 4
        assert slow.metric("trimaran_batch_requests_running") == 0


def test_a_batch_expires(slow: Running) -> None:
    with client_of(slow) as client:
        made = begun(client, texts(1) + texts(4, max_tokens=1500)[1:], completion_window="3s")
        batch = ended(client, made.id)
        assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == ("expired", 1, 3)
        assert batch.expired_at >= batch.expires_at
        codes = {error["error"]["code"] for error in results(client, batch.error_file_id)}
        assert codes == {"batch_expired"}


def test_other_requests_go_first(slow: Running) -> None:
    """Both places are taken by lines that run for long: a request does not wait for either to end."""
    with client_of(slow) as client:
        made = begun(client, texts(3, max_tokens=300))
        until(client, made.id, lambda _: slow.metric("trimaran_sequences_running") == 2)
        answer = client.completions.create(model=NAME, prompt="now", max_tokens=4, extra_body={"ignore_eos": True})
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 4
        assert client.batches.retrieve(made.id).request_counts.completed == 0
        eventually(lambda: slow.metric("trimaran_preemptions_total") >= 1)
        batch = ended(client, made.id)
        assert batch.request_counts.completed == 3
        assert slow.metric("trimaran_request_seconds_count") == 1, "how long lines take is no measure of a server"
        lines = results(client, batch.output_file_id)
        answers = {one["custom_id"]: one["response"]["body"]["choices"] for one in lines}
        for asked in texts(3, max_tokens=300)[1:2]:
            assert answers[asked["custom_id"]] == slow.http.post(TEXT, json=asked["body"]).json()["choices"]


def test_a_tenant_sees_its_own(byte_model: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("one name=alice\ntwo name=bob\nthree name=alice\n")
    keys.chmod(0o600)
    with (
        running(byte_model, api_key_file=str(keys)) as server,
        client_of(server, "one") as alice,
        client_of(server, "two") as bob,
        client_of(server, "three") as again,
    ):
        batch = ended(alice, begun(alice, texts(2)).id)
        assert ended(again, batch.id) == batch, "two keys of one tenant"
        for file_id in (batch.input_file_id, batch.output_file_id):
            for ask in (bob.files.retrieve, bob.files.content, bob.files.delete):
                with pytest.raises(openai.NotFoundError):
                    ask(file_id)
        for look in (bob.batches.retrieve, bob.batches.cancel):
            with pytest.raises(openai.NotFoundError):
                look(batch.id)
        with pytest.raises(openai.NotFoundError):
            bob.batches.create(input_file_id=batch.input_file_id, endpoint=TEXT, completion_window="24h")
        assert bob.batches.list().data == []
        with pytest.raises(openai.BadRequestError):
            bob.batches.list(after=batch.id)
        assert bob.files.list().data == []
        assert len(alice.files.list().data) == 2


def test_limits_of_a_tenant_hold_lines_back_and_leave_it_its_requests(byte_model: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("one name=alice concurrency=1 requests=600\n")
    keys.chmod(0o600)
    with running(byte_model, null=SLOW, api_key_file=str(keys)) as server, client_of(server, "one") as client:
        made = begun(client, texts(3, max_tokens=40))
        until(client, made.id, lambda _: server.metric("trimaran_batch_requests_running", "one") == 1)
        client.completions.create(model=NAME, prompt="now", max_tokens=2)
        assert ended(client, made.id).request_counts.completed == 3


def test_tenants_take_turns(byte_model: Path, tmp_path: Path) -> None:
    """The second does not wait for all that the first has sent before; of one tenant's batches the first is first."""
    keys = tmp_path / "keys"
    keys.write_text("one name=alice\ntwo name=bob\n")
    keys.chmod(0o600)
    with (
        running(byte_model, null=SLOW, api_key_file=str(keys), batch_concurrency=1) as server,
        client_of(server, "one") as alice,
        client_of(server, "two") as bob,
    ):
        first, second = (begun(alice, texts(count, max_tokens=12)) for count in (60, 1))
        until(alice, second.id, lambda batch: batch.status == "in_progress")
        others = begun(bob, texts(2, max_tokens=12))
        ended(bob, others.id)
        assert alice.batches.retrieve(first.id).request_counts.completed < 60
        assert alice.batches.retrieve(second.id).request_counts.completed == 0
