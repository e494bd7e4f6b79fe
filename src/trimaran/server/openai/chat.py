"""``POST /v1/chat/completions``: messages to prompt, pieces to message or chunks."""

from collections.abc import AsyncGenerator
from typing import Literal

import msgspec

from trimaran.base.errors import RequestError
from trimaran.server.dataplane import DataPlane, Generation, Run
from trimaran.server.openai import answers
from trimaran.server.openai.identity import Identity
from trimaran.server.openai.logprobs import chat_logprobs
from trimaran.server.openai.schema import ChatRequest
from trimaran.server.openai.sse import event
from trimaran.text.chat_messages import contents
from trimaran.text.template import ChatTemplate


def generation(request: ChatRequest, template: ChatTemplate, plane: DataPlane) -> Generation:
    """What ``request`` asks of the data plane; raises ``RequestError`` naming the field at fault."""
    sampling = request.sampling()
    arguments = request.chat_template_kwargs or {}
    if "add_generation_prompt" in arguments:
        raise RequestError("add_generation_prompt is a field of its own", param="chat_template_kwargs")
    messages = request.template_messages()
    plane.tokenizer.require_room(*contents(messages), context=plane.limits.context, param="messages")
    try:
        prompt = template.render(
            messages,
            add_generation_prompt=request.add_generation_prompt is not False,
            **arguments,
        )
    except RequestError as error:
        error.param = "messages" if error.param == "prompt" else error.param  # what the tokenizer calls a prompt
        raise
    return Generation(
        (prompt,),
        sampling,
        request.priority or 0,
        request.cache_salt or "",
        param="messages",
        length_param=request.length_field,
    )


async def whole(run: Run, request: ChatRequest, identity: Identity, plane: DataPlane) -> answers.ChatCompletion:
    """Waits for every choice and answers with all of them."""
    choices = []
    for piece in await run.collect():
        assert piece.finish is not None
        logprobs = chat_logprobs(plane.tokenizer, piece.tokens) if request.logprobs else None
        message = answers.ChatMessage(piece.text)
        choices.append(answers.ChatChoice(piece.choice, message, piece.finish, logprobs, piece.stop_reason))
    return answers.ChatCompletion(
        id=identity.id,
        created=identity.created,
        model=identity.model,
        system_fingerprint=identity.fingerprint,
        choices=choices,
        usage=answers.usage(run.usage),
    )


async def chunks(run: Run, request: ChatRequest, identity: Identity, plane: DataPlane) -> AsyncGenerator[bytes]:
    """Yields an event for every piece that shows something, and one with the usage when asked for."""

    def chunk(choices: list[answers.ChunkChoice], usage: answers.Usage | None = None) -> bytes:
        return event(
            answers.ChatChunk(
                id=identity.id,
                created=identity.created,
                model=identity.model,
                system_fingerprint=identity.fingerprint,
                choices=choices,
                usage=usage if request.include_usage else msgspec.UNSET,
            )
        )

    begun: set[int] = set()
    async with run:
        async for pieces in run:
            for piece in pieces:
                logprobs = chat_logprobs(plane.tokenizer, piece.tokens) if request.logprobs and piece.tokens else None
                if not piece.text and logprobs is None and piece.finish is None:
                    continue
                role: Literal["assistant"] | None = None if piece.choice in begun else "assistant"
                begun.add(piece.choice)
                content = piece.text if piece.text or role else None
                delta = answers.Delta(role, content)
                yield chunk([answers.ChunkChoice(piece.choice, delta, logprobs, piece.finish, piece.stop_reason)])
    if request.include_usage:
        yield chunk([], answers.usage(run.usage))
