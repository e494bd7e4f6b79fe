"""Requests that are right, for ``bodies.py`` to damage."""

import json
from random import Random
from typing import Any

from trimaran.bench.mix import CHAT, COMPLETIONS, Request, draw, probes

PATHS = (
    "/health", "/ready", "/metrics", "/version", "/openapi.json", "/v1/models", "/v1/models/x", "/v1/models/%2e%2e/x",
    CHAT, COMPLETIONS, "/", "//", "/v1/chat/completions/", "/v1/%00", "/v1/embeddings", "/%ff",
)  # fmt: skip
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string", "pattern": "[a-z]+"}, "b": {"type": "array", "items": {"type": "integer"}}},
    "required": ["a"],
    "additionalProperties": False,
}
FIELDS: dict[str, Any] = {  # what ``mix`` leaves out, at values that mean something
    "chat_template_kwargs": {"enable_thinking": False, "a": [1, {"b": "c"}]},
    "max_completion_tokens": 5,
    "metadata": {"a": "b"},
    "min_tokens": 2,
    "parallel_tool_calls": True,
    "priority": -3,
    "prompt_cache_key": "k",
    "cache_salt": "salt",
    "reasoning_effort": "low",
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}},
    "stop_token_ids": [1, 2, 3],
    "stream_options": {"include_usage": True},
    "structured_outputs": {"regex": "a+(b|c)*"},
    "guided_choice": ["yes", "no"],
    "guided_json": SCHEMA,
    "tool_choice": "auto",
    "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}],
    "top_logprobs": 3,
    "user": "u",
    "echo": True,
    "best_of": 1,
    "suffix": "x",
}
SCHEMAS: tuple[Any, ...] = (  # that are right, or nearly, and large when they are followed to the end
    SCHEMA,
    {"$ref": "#"},
    {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"},
    {"$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"},
    {"type": "array", "items": {"type": "integer"}, "minItems": 100_000, "maxItems": 10**9},
    {"type": "string", "minLength": 10**6},
    {"type": "string", "pattern": "^((a{1,99}){1,99}){1,99}$"},
    {"type": "object", "properties": {f"p{i}": SCHEMA for i in range(300)}},
    {"enum": [f"word {i}" for i in range(3000)]},
    {"allOf": [SCHEMA, {"not": SCHEMA}, {"if": SCHEMA, "then": False}]},
    {"type": "number", "minimum": 0.1, "maximum": 1e308, "multipleOf": 1e-9},
    {"oneOf": [{"type": "object", "properties": {"k": {"const": i}}} for i in range(200)]},
)
TEXTS = (  # of regular expressions and grammars
    "a+(b|c)*",
    "((a{1,99}){1,99}){1,99}",
    "(a|a)*" * 30 + "b",
    "(?=a)b\\1",
    "[\\u0000-\\U0010FFFF]{5000}",
    "(" * 2000 + ")" * 2000,
    "start: start start | ",
    'start: "a" start "b" | other\nother: start | /x{1,10000}/',
    "start: "
    + " | ".join(f"r{i}" for i in range(500))
    + "\n"
    + "\n".join(f'r{i}: "a" r{(i + 1) % 500}' for i in range(500)),
    'root ::= "a" root | root root',
)
MESSAGES: tuple[dict[str, Any], ...] = (
    {"role": "system", "content": "s"},
    {"role": "developer", "content": [{"type": "text", "text": "d"}, {"type": "text", "text": "<|im_start|>"}]},
    {"role": "user", "content": "u", "name": "n"},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": \"b\"}"}}]},
    {"role": "tool", "tool_call_id": "call_1", "content": "t"},
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]},
)  # fmt: skip


def draw_request(random: Random, model: str) -> Request:
    """A request of ``mix``, with more fields and other messages now and then; it may be one that is refused."""
    if random.random() < 0.1:
        return random.choice(
            (
                Request("/tokenize", {"model": model, "prompt": "<|im_end|> a", "return_token_strs": True}),
                Request("/tokenize", {"model": model, "messages": list(MESSAGES[:5]), "tools": FIELDS["tools"]}),
                Request("/detokenize", {"model": model, "tokens": [1, 2, 3]}),
                Request("/v1/embeddings", {"model": model, "input": ["a", "b"], "encoding_format": "base64"}),
                Request("/v1/rerank", {"model": model, "query": "a", "documents": ["b", {"text": "c"}], "top_n": 1}),
                Request("/v1/score", {"model": model, "text_1": "a", "text_2": ["b", "c"]}),
            )
        )
    request = draw(random, model, probes(model))
    body = dict(request.body)
    for name in random.sample(list(FIELDS), k=random.choice((0, 0, 0, 1, 3))):
        body[name] = FIELDS[name]
    if random.random() < 0.15:
        name, value = _constraint(random, random.choice(SCHEMAS), random.choice(TEXTS))
        body[name] = value
        body.pop("ignore_eos", None)
    if request.path == CHAT and random.random() < 0.5:
        body["messages"] = [random.choice(MESSAGES) for _ in range(random.randint(1, 6))]
    if request.path == COMPLETIONS and random.random() < 0.3:
        body["prompt"] = random.choice(([1, 2, 3], [[1, 2], [3]], ["a", "b"], "<|im_end|>"))
    return Request(request.path, body)


def _constraint(random: Random, schema: Any, text: str) -> tuple[str, Any]:
    """A field that holds the answer to a schema or a text, of those that there are."""
    tools = [{"type": "function", "function": {"name": name, "parameters": schema}} for name in ("f", "g")]
    fields = (
        ("response_format", {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}),
        ("tools", tools),
        ("guided_json", schema),
        ("structured_outputs", {random.choice(("regex", "grammar")): text}),
        ("guided_regex", text),
        ("guided_grammar", text),
    )
    return random.choice(fields)


def raw_request(random: Random, model: str, host: str) -> bytes:
    """One or two requests on one connection, as bytes."""
    data = b""
    for _ in range(random.choice((1, 1, 2))):
        request = draw_request(random, model)
        body = json.dumps(request.body).encode()
        head = [f"POST {request.path} HTTP/1.1", f"host: {host}", "content-type: application/json"]
        head += random.choice(
            ([], ["expect: 100-continue"], ["upgrade: websocket", "connection: upgrade"], ["x:" * 99])
        )
        if random.random() < 0.3:
            head.append("transfer-encoding: chunked")
            body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        else:
            head.append(f"content-length: {len(body)}")
        data += "\r\n".join(head).encode() + b"\r\n\r\n" + body
    return data
