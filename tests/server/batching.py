"""What tests of batches do through the official client."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import openai

from .running import NAME, Running, eventually

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ENDED = ("completed", "failed", "expired", "cancelled")


def client_of(server: Running, key: str = "unused") -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0)


def line(name: str, url: str, **body: Any) -> dict[str, Any]:
    return {"custom_id": name, "method": "POST", "url": url, "body": {"model": NAME, **body}}


def texts(count: int, **options: Any) -> list[dict[str, Any]]:
    """Lines of completions that differ."""
    more = {"max_tokens": 8, "temperature": 0, "ignore_eos": True, **options}
    return [line(f"line {number}", TEXT, prompt=f"text {number}", **more) for number in range(count)]


def upload(client: openai.OpenAI, lines: Sequence[Any]) -> str:
    """The id of a file with these lines, each JSON or, as bytes, itself."""
    content = b"\n".join(one if isinstance(one, bytes) else json.dumps(one).encode() for one in lines)
    return client.files.create(file=("input.jsonl", content), purpose="batch").id


def begun(client: openai.OpenAI, lines: Sequence[Any], endpoint: str = TEXT, **options: Any) -> Any:
    options = {"completion_window": "24h", **options}
    return client.batches.create(input_file_id=upload(client, lines), endpoint=endpoint, **options)


def until(client: openai.OpenAI, batch_id: str, true: Callable[[Any], bool]) -> Any:
    """The batch once it is so."""
    seen: list[Any] = [None]

    def look() -> bool:
        seen[0] = client.batches.retrieve(batch_id)
        return true(seen[0])

    eventually(look)
    return seen[0]


def ended(client: openai.OpenAI, batch_id: str) -> Any:
    return until(client, batch_id, lambda batch: batch.status in ENDED)


def results(client: openai.OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    """The lines of a file that a batch has left."""
    if file_id is None:
        return []
    return [json.loads(text) for text in client.files.content(file_id).text.splitlines()]
