"""Requests of ``/v1/chat/completions`` and ``/v1/completions``: every field, its type and what becomes of it.

Fields are those of the OpenAI API and of vLLM's extensions to it. What is not offered is refused (``fields.py``).
``user``, ``safety_identifier``, ``prompt_cache_key`` and ``metadata`` are labels: they never change an answer; they are
written to the request's line in the log at level ``debug`` and kept nowhere else. One engine has one cache, so every
``prompt_cache_key`` already finds what it could; to keep tenants' caches apart there is ``cache_salt``.
"""

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from trimaran.base.errors import RequestError
from trimaran.base.sampling import SamplingParams
from trimaran.server.openai import fields
from trimaran.server.openai.body import Body, Ids, OneFinding, Strings, values_of
from trimaran.server.openai.bounds import MAX_MESSAGES, MAX_TOOLS
from trimaran.server.openai.messages import Message
from trimaran.server.openai.structured import Structured
from trimaran.server.openai.tools import Calling, Tool, ToolChoice, calling

SALT_LENGTH = 1024  # every choice carries it
COMPLETION_TOKENS = 16  # max_tokens of a completion that names none (OpenAI API reference)


class StreamOptions(Body):
    inert = fields.STREAM_OPTIONS

    include_usage: bool | None = None


class Generate(Structured):
    """What chat and completions have in common."""

    model: str
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Annotated[dict[str, float], values_of(int | float, "a number")] | None = None
    seed: int | None = None
    stop: str | Strings | None = None
    stop_token_ids: Ids | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    max_tokens: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None
    cache_salt: Annotated[str, Field(max_length=SALT_LENGTH)] | None = None
    user: str | None = None

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def labels(self) -> dict[str, Any]:
        """What the client says of itself, for the log."""
        names = ("user", "safety_identifier", "prompt_cache_key", "metadata")
        return {name: value for name in names if (value := getattr(self, name, None)) is not None}

    def _sampling(self, *, max_tokens: int | None, logprobs: int | None) -> SamplingParams:
        """Sampling options; raises ``RequestError`` naming the field that is out of range."""
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options is allowed only when stream is true", param="stream_options")
        given: dict[str, Any] = {
            "n": self.n,
            "max_tokens": max_tokens,
            "min_tokens": self.min_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "logit_bias": None if self.logit_bias is None else _token_bias(self.logit_bias),
            "seed": self.seed,
            "stop": (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ()),
            "stop_token_ids": tuple(self.stop_token_ids or ()),
            "ignore_eos": self.ignore_eos,
            "logprobs": logprobs,
            "grammar": self.grammar(),
        }
        return SamplingParams(**{name: value for name, value in given.items() if value is not None})


class ChatRequest(Generate):
    """Body of ``POST /v1/chat/completions``."""

    inert: ClassVar[fields.Inert] = {**fields.VLLM, **fields.VLLM_CHAT, **fields.OPENAI_CHAT}

    messages: Annotated[list[Message], OneFinding(), Field(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    metadata: Annotated[dict[str, str], values_of(str, "a string")] | None = None
    prompt_cache_key: str | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    safety_identifier: str | None = None
    tools: Annotated[list[Tool], OneFinding(), Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    @property
    def calling(self) -> Calling:
        """Which functions an answer may call; raises ``RequestError``."""
        return calling(self.tools or [], self.tool_choice, self.parallel_tool_calls is not False)

    def sampling(self) -> SamplingParams:
        if self.top_logprobs is not None and not self.logprobs:
            raise RequestError("top_logprobs is allowed only when logprobs is true", param="top_logprobs")
        limits = {limit for limit in (self.max_tokens, self.max_completion_tokens) if limit is not None}
        if len(limits) > 1:
            raise RequestError(
                "max_tokens and max_completion_tokens differ; send max_completion_tokens alone",
                param="max_completion_tokens",
            )
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        try:
            return self._sampling(max_tokens=limits.pop() if limits else None, logprobs=logprobs)
        except RequestError as error:  # it knows our names of options, the client wrote others
            ours = error.param or ""
            theirs = {"max_tokens": self.length_field, "logprobs": "top_logprobs"}.get(ours, ours)
            raise RequestError(str(error).replace(ours, theirs, 1), param=theirs or None, code=error.code) from None

    @property
    def length_field(self) -> str:
        """The field that limits the answer's length."""
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    def template_messages(self) -> list[dict[str, Any]]:
        """Messages as chat templates know them: ``developer`` is today's name for ``system``."""
        messages = [message.for_template() for message in self.messages]
        return [{**m, "role": "system"} if m["role"] == "developer" else m for m in messages]


class CompletionRequest(Generate):
    """Body of ``POST /v1/completions``."""

    inert: ClassVar[fields.Inert] = {**fields.VLLM, **fields.OPENAI_COMPLETIONS}

    prompt: str | Ids | Annotated[list[Ids], OneFinding()] | Strings
    best_of: int | None = None
    echo: bool | None = None
    logprobs: int | None = None

    def sampling(self) -> SamplingParams:
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise RequestError("best_of other than n is not supported", param="best_of", code="unsupported_parameter")
        if self.echo and self.logprobs is not None:
            raise RequestError("echo with logprobs is not supported", param="echo", code="unsupported_parameter")
        return self._sampling(
            max_tokens=COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens, logprobs=self.logprobs
        )

    def prompts(self) -> list[str | list[int]]:
        """One prompt per element, whichever of the four forms was sent; raises ``RequestError`` when there is none."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        if not prompt:
            raise RequestError("prompt is empty", param="prompt")
        if isinstance(prompt[0], int):
            return [prompt]  # a list whose first element is an id holds ids only
        return list(prompt)


def _token_bias(bias: dict[str, float]) -> dict[int, float]:
    for token in bias:  # one spelling an id, or "05" would silently win over "5"
        if not re.fullmatch(r"0|[1-9][0-9]{0,9}", token):
            raise RequestError(f"logit_bias maps token ids to values: {token!r:.50} is not an id", param="logit_bias")
    return {int(token): value for token, value in bias.items()}
