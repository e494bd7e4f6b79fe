"""``POST /v1/completions``: prompts as text or ids, pieces to a text or chunks of one."""

import msgspec

from trimaran.base.errors import RequestError
from trimaran.server.dataplane import MAX_CHOICES, DataPlane, Generation, Run
from trimaran.server.openai import answers
from trimaran.server.openai.identity import Identity
from trimaran.server.openai.logprobs import completion_logprobs
from trimaran.server.openai.schema import CompletionRequest
from trimaran.server.openai.sse import MARK, DataEvents, TextEvent, event
from trimaran.text.choice import Piece
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


class Events(DataEvents):
    """An event for every piece that shows something, and one with the usage when asked for."""

    def __init__(self, run: Run, request: CompletionRequest, identity: Identity, plane: DataPlane) -> None:
        self._run, self._request, self._identity, self._plane = run, request, identity, plane
        n = request.n or 1
        before = [echo for echo in echoes(request, plane.tokenizer) for _ in range(n)]
        self._before = {choice: text for choice, text in enumerate(before) if text}  # not yet said
        self._texts: dict[int, TextEvent] = {}  # by choice

    def of(self, piece: Piece) -> bytes:
        text = piece.text
        if self._before:
            text = self._before.pop(piece.choice, "") + text
        if piece.finish is None and self._request.logprobs is None:
            return self._text(piece.choice)(text) if text else b""
        logprobs = None
        if self._request.logprobs is not None and piece.tokens:
            logprobs = completion_logprobs(self._plane.tokenizer, piece.tokens, piece.offsets)
        if not text and logprobs is None and piece.finish is None:
            return b""
        return event(
            self._chunk(answers.CompletionChoice(piece.choice, text, logprobs, piece.finish, piece.stop_reason))
        )

    def last(self) -> bytes:
        return event(self._chunk(usage=answers.usage(self._run.usage))) if self._request.include_usage else b""

    def _text(self, choice: int) -> TextEvent:
        found = self._texts.get(choice)
        if found is None:
            found = self._texts[choice] = TextEvent(self._chunk(answers.CompletionChoice(choice, MARK)))
        return found

    def _chunk(self, *choices: answers.CompletionChoice, usage: answers.Usage | None = None) -> answers.Completion:
        return answers.Completion(
            id=self._identity.id,
            created=self._identity.created,
            model=self._identity.model,
            system_fingerprint=self._identity.fingerprint,
            choices=list(choices),
            usage=usage if self._request.include_usage else msgspec.UNSET,
        )
