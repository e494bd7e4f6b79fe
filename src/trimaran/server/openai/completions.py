"""``POST /v1/completions``: prompts as text or ids, pieces to a text or chunks of one."""

from collections.abc import AsyncGenerator

import msgspec

from trimaran.base.errors import RequestError
from trimaran.server.dataplane import MAX_CHOICES, DataPlane, Generation, Run
from trimaran.server.openai import answers
from trimaran.server.openai.identity import Identity
from trimaran.server.openai.logprobs import completion_logprobs
from trimaran.server.openai.schema import CompletionRequest
from trimaran.server.openai.sse import event
from trimaran.text.tokenizer import Tokenizer


def generation(request: CompletionRequest, plane: DataPlane) -> Generation:
    """What ``request`` asks of the data plane; raises ``RequestError`` naming the field at fault."""
    sampling = request.sampling()
    if len(request.prompts()) > MAX_CHOICES:  # known before anything is tokenised
        raise RequestError(f"a request may have at most {MAX_CHOICES} prompts", param="prompt")
    for prompt in request.prompts():
        if isinstance(prompt, str):
            plane.tokenizer.require_room(prompt, context=plane.limits.context, param="prompt")
    prompts = tuple(
        plane.tokenizer.encode_prompt(prompt) if isinstance(prompt, str) else prompt for prompt in request.prompts()
    )
    return Generation(prompts, sampling, request.priority or 0, request.cache_salt or "")


def echoes(request: CompletionRequest, tokenizer: Tokenizer) -> list[str]:
    """What each prompt puts before its answers: itself when ``echo`` is set."""
    if not request.echo:
        return ["" for _ in request.prompts()]
    return [prompt if isinstance(prompt, str) else tokenizer.decode(prompt) for prompt in request.prompts()]


async def whole(run: Run, request: CompletionRequest, identity: Identity, plane: DataPlane) -> answers.Completion:
    """Waits for every choice and answers with all of them."""
    n = request.n or 1
    before = [echo for echo in echoes(request, plane.tokenizer) for _ in range(n)]
    choices = []
    for piece in await run.collect():
        logprobs = (
            None if request.logprobs is None else completion_logprobs(plane.tokenizer, piece.tokens, piece.offsets)
        )
        text = before[piece.choice] + piece.text
        choices.append(answers.CompletionChoice(piece.choice, text, logprobs, piece.finish, piece.stop_reason))
    return answers.Completion(
        id=identity.id,
        created=identity.created,
        model=identity.model,
        system_fingerprint=identity.fingerprint,
        choices=choices,
        usage=answers.usage(run.usage),
    )


async def chunks(run: Run, request: CompletionRequest, identity: Identity, plane: DataPlane) -> AsyncGenerator[bytes]:
    """Yields an event for every piece that shows something, and one with the usage when asked for."""

    def chunk(choices: list[answers.CompletionChoice], usage: answers.Usage | None = None) -> bytes:
        return event(
            answers.Completion(
                id=identity.id,
                created=identity.created,
                model=identity.model,
                system_fingerprint=identity.fingerprint,
                choices=choices,
                usage=usage if request.include_usage else msgspec.UNSET,
            )
        )

    n = request.n or 1
    pending = [echo for echo in echoes(request, plane.tokenizer) for _ in range(n)]  # goes before the first piece
    async with run:
        async for pieces in run:
            for piece in pieces:
                text, pending[piece.choice] = pending[piece.choice] + piece.text, ""
                logprobs = None
                if request.logprobs is not None and piece.tokens:
                    logprobs = completion_logprobs(plane.tokenizer, piece.tokens, piece.offsets)
                if text or logprobs is not None or piece.finish is not None:
                    yield chunk(
                        [answers.CompletionChoice(piece.choice, text, logprobs, piece.finish, piece.stop_reason)]
                    )
    if request.include_usage:
        yield chunk([], answers.usage(run.usage))
