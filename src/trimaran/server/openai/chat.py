"""``POST /v1/chat/completions``: messages to prompt, pieces to message or chunks."""

from typing import Any

import msgspec

from trimaran.base.errors import RequestError
from trimaran.server.dataplane import DataPlane, Generation, Run
from trimaran.server.openai import answers
from trimaran.server.openai.bounds import require_small
from trimaran.server.openai.identity import Identity
from trimaran.server.openai.logprobs import chat_logprobs
from trimaran.server.openai.schema import ChatRequest
from trimaran.server.openai.sse import MARK, TextEvent, event
from trimaran.text.chat_messages import contents
from trimaran.text.choice import Piece
from trimaran.text.template import ChatTemplate


def generation(request: ChatRequest, template: ChatTemplate, plane: DataPlane) -> Generation:
    """What ``request`` asks of the data plane; raises ``RequestError`` naming the field at fault."""
    sampling = request.sampling()
    arguments = _template_arguments(request, template)
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
        message=True,
        param="messages",
        length_param=request.length_field,
    )


def _template_arguments(request: ChatRequest, template: ChatTemplate) -> dict[str, Any]:
    arguments = request.chat_template_kwargs or {}
    require_small(arguments, "chat_template_kwargs")
    if "add_generation_prompt" in arguments:
        raise RequestError("add_generation_prompt is a field of its own", param="chat_template_kwargs")
    if request.reasoning_effort is None:
        return arguments
    wanted = template.effort(request.reasoning_effort)
    for name in wanted.keys() & arguments.keys():
        raise RequestError(
            f"reasoning_effort sets {name!r}, and so does chat_template_kwargs", param="reasoning_effort"
        )
    return {**arguments, **wanted}


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


class Events:
    """An event for every piece that shows something, and one with the usage when asked for."""

    def __init__(self, run: Run, request: ChatRequest, identity: Identity, plane: DataPlane) -> None:
        self._run, self._request, self._identity, self._plane = run, request, identity, plane
        self._texts: dict[int, TextEvent] = {}  # by choice, once it has begun

    def of(self, piece: Piece) -> bytes:
        begun = self._texts.get(piece.choice)
        if begun is not None and piece.finish is None and not self._request.logprobs:
            return begun(piece.text) if piece.text else b""
        logprobs = None
        if self._request.logprobs and piece.tokens:
            logprobs = chat_logprobs(self._plane.tokenizer, piece.tokens)
        if not piece.text and logprobs is None and piece.finish is None:
            return b""
        if begun is None:
            self._texts[piece.choice] = TextEvent(
                self._chunk(answers.ChunkChoice(piece.choice, answers.Delta(None, MARK)))
            )
        delta = answers.Delta("assistant", piece.text) if begun is None else answers.Delta(None, piece.text or None)
        return event(self._chunk(answers.ChunkChoice(piece.choice, delta, logprobs, piece.finish, piece.stop_reason)))

    def last(self) -> bytes:
        return event(self._chunk(usage=answers.usage(self._run.usage))) if self._request.include_usage else b""

    def _chunk(self, *choices: answers.ChunkChoice, usage: answers.Usage | None = None) -> answers.ChatChunk:
        return answers.ChatChunk(
            id=self._identity.id,
            created=self._identity.created,
            model=self._identity.model,
            system_fingerprint=self._identity.fingerprint,
            choices=list(choices),
            usage=usage if self._request.include_usage else msgspec.UNSET,
        )
