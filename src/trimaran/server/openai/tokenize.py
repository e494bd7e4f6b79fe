"""``POST /tokenize`` and ``/detokenize``, in the shapes of vLLM: what a prompt or a conversation is to the model."""

from typing import Annotated, Any, ClassVar, Self

import msgspec
from pydantic import Field, model_validator

from trimaran.base.errors import RequestError
from trimaran.server.dataplane import DataPlane
from trimaran.server.openai import chat, fields
from trimaran.server.openai.body import Body, Ids, OneFinding
from trimaran.server.openai.bounds import MAX_MESSAGES, MAX_TOOLS
from trimaran.server.openai.messages import Message
from trimaran.server.openai.schema import ChatRequest
from trimaran.server.openai.tools import Tool
from trimaran.text.template import ChatTemplate

OF_CHATS = ("messages", "add_generation_prompt", "chat_template_kwargs", "tools")


class TokenizeRequest(Body):
    """Body of ``POST /tokenize``: a ``prompt`` as for completions, or ``messages`` as for chats."""

    inert: ClassVar[fields.Inert] = fields.VLLM_TOKENIZE

    model: str
    prompt: str | None = None
    add_special_tokens: bool | None = None
    messages: Annotated[list[Message], OneFinding(), Field(min_length=1, max_length=MAX_MESSAGES)] | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Annotated[list[Tool], OneFinding(), Field(max_length=MAX_TOOLS)] | None = None
    return_token_strs: bool | None = None

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if self.prompt is None and self.messages is None:
            raise fields.refused("missing_required_parameter", "prompt", "or messages is required")
        others = OF_CHATS if self.prompt is not None else ("add_special_tokens",)
        for name in others:
            if getattr(self, name) is not None:
                kind = "a prompt" if self.prompt is not None else "messages"
                raise fields.refused("invalid_value", name, f"does not go with {kind}")
        return self


class DetokenizeRequest(Body):
    """Body of ``POST /detokenize``."""

    model: str
    tokens: Ids


class Tokenized(msgspec.Struct, frozen=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class Detokenized(msgspec.Struct, frozen=True):
    prompt: str


def tokenized(request: TokenizeRequest, template: ChatTemplate, plane: DataPlane) -> Tokenized:
    """Raises ``RequestError``."""
    tokenizer = plane.tokenizer
    if request.prompt is None:
        given = {name: getattr(request, name) for name in OF_CHATS}
        conversation = ChatRequest.model_construct(model=request.model, **given)
        ids = chat.rendered(conversation, conversation.calling, template, plane).prompt
    elif request.add_special_tokens is False:
        ids = tokenizer.encode(request.prompt, special=True)
    else:
        ids = tokenizer.encode_prompt(request.prompt)
    texts = [tokenizer.decode([token], skip_special=False) for token in ids] if request.return_token_strs else None
    return Tokenized(len(ids), plane.limits.context, ids, texts)


def detokenized(request: DetokenizeRequest, plane: DataPlane) -> Detokenized:
    """The text of all tokens, control tokens as they are spelled; raises ``RequestError``."""
    for at, token in enumerate(request.tokens):
        if not 0 <= token < plane.limits.vocab:
            raise RequestError(
                f"tokens[{at}] is {token}; ids are from 0 to {plane.limits.vocab - 1}", param=f"tokens[{at}]"
            )
    return Detokenized(plane.tokenizer.decode(request.tokens, skip_special=False))
