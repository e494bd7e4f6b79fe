"""``POST /v1/chat/completions``: what a request asks of the data plane, and the whole answer."""

from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import msgspec

from trimaran.base.errors import RequestError
from trimaran.server.dataplane import DataPlane, Generation, Run
from trimaran.server.metrics import Metrics
from trimaran.server.openai import answers
from trimaran.server.openai.bounds import require_small
from trimaran.server.openai.identity import Identity
from trimaran.server.openai.logprobs import chat_logprobs
from trimaran.server.openai.schema import ChatRequest
from trimaran.server.openai.tools import Calling
from trimaran.server.reuse import conversation_keys
from trimaran.text.chat_messages import contents
from trimaran.text.choice import Finish
from trimaran.text.template import ChatTemplate
from trimaran.text.tools.answer_format import AnswerFormat
from trimaran.text.tools.choice_reader import Answer, ChoiceReader
from trimaran.text.tools.parser import AnswerForm


@dataclass(frozen=True)
class Asked:
    """A request's generation, and what to look for in its answers: None where all there can be is text."""

    generation: Generation
    form: AnswerForm | None = None
    made: int = 0  # calls of tools earlier in the conversation
    enforced: bool = False  # a grammar lets sound calls through only

    def reader(self) -> ChoiceReader:
        """For one choice."""
        assert self.form is not None
        return ChoiceReader(self.form, made=self.made, enforced=self.enforced)


@dataclass(frozen=True)
class Ending:
    """Why a choice stopped, and what was wrong with those of its calls that were none."""

    reason: answers.FinishReason
    malformed: list[str] | msgspec.UnsetType = msgspec.UNSET

    @classmethod
    def of(cls, reader: ChoiceReader, finish: Finish, metrics: Metrics) -> Self:
        """That of a choice that ``reader`` has read to its end, whose calls it counts."""
        metrics.tool_calls.labels("parsed").inc(reader.calls)
        metrics.tool_calls.labels("malformed").inc(len(reader.malformed))
        called = finish == "stop" and reader.calls > 0
        return cls("tool_calls" if called else finish, reader.malformed or msgspec.UNSET)


def ask(request: ChatRequest, template: ChatTemplate, formats: AnswerFormat, plane: DataPlane) -> Asked:
    """What ``request`` asks for; raises ``RequestError`` naming the field at fault."""
    sampling = request.sampling()
    calling = request.calling
    _require_known(request, calling, formats)
    messages, arguments, prompt = rendered(request, calling, template, plane)
    thinking = formats.thinking(prompt)
    if (grammar := formats.grammar(calling.wanted(sampling.grammar), thinking)) != sampling.grammar:
        sampling = msgspec.structs.replace(sampling, grammar=grammar)
    keys = conversation_keys(messages, arguments)
    plane.reuse.look(keys, messages, prompt)
    generation = Generation(
        (prompt,),
        sampling,
        request.priority or 0,
        request.cache_salt or "",
        message=True,
        param="messages",
        length_param=request.length_field,
        conversation=keys[-1],
    )
    if thinking == "no" and not calling.names:
        return Asked(generation)
    made = sum(len(message.tool_calls or ()) for message in request.messages)
    return Asked(generation, formats.form(thinking, calling.offered), made, enforced=grammar is not None)


class Rendered(NamedTuple):
    """What a chat template was given, and the ids of the prompt that it made of that."""

    messages: list[dict[str, Any]]
    arguments: dict[str, Any]
    prompt: list[int]


def rendered(request: ChatRequest, calling: Calling, template: ChatTemplate, plane: DataPlane) -> Rendered:
    """The prompt of a conversation; raises ``RequestError`` naming the field at fault."""
    arguments = _template_arguments(request, template, calling)
    messages = request.template_messages()
    tools = [msgspec.json.encode(tool).decode() for tool in arguments.get("tools", ())]
    plane.tokenizer.require_room(*contents(messages), *tools, context=plane.limits.context, param="messages")
    try:
        prompt = template.render(
            messages, add_generation_prompt=request.add_generation_prompt is not False, **arguments
        )
    except RequestError as error:
        error.param = "messages" if error.param == "prompt" else error.param  # what the tokenizer calls a prompt
        raise
    return Rendered(messages, arguments, prompt)


def _template_arguments(request: ChatRequest, template: ChatTemplate, calling: Calling) -> dict[str, Any]:
    arguments = request.chat_template_kwargs or {}
    require_small(arguments, "chat_template_kwargs")
    for name in ("add_generation_prompt", "tools"):
        if name in arguments:
            raise RequestError(f"{name} in chat_template_kwargs is a field of its own", param="chat_template_kwargs")
    if calling.tools:
        arguments = {**arguments, "tools": [tool.for_template() for tool in calling.tools]}
    if request.reasoning_effort is None:
        return arguments
    wanted = template.effort(request.reasoning_effort)
    for name in wanted.keys() & arguments.keys():
        raise RequestError(
            f"reasoning_effort sets {name!r}, and so does chat_template_kwargs", param="reasoning_effort"
        )
    return {**arguments, **wanted}


def _require_known(request: ChatRequest, calling: Calling, formats: AnswerFormat) -> None:
    """Raises ``RequestError`` where calls or thoughts would be lost because nobody knows how the model writes them."""
    if calling.names and formats.tools is None:
        why = "how this model writes calls of tools is not known, or switched off; the server has --tool-call-parser"
        raise RequestError(why, param="tools", code="unsupported")
    if formats.reasoning is None:
        for at, message in enumerate(request.messages):
            if message.reasoning_content:
                where = f"messages[{at}].reasoning_content"
                why = "this model has no thoughts, or they are switched off; the server has --reasoning-parser"
                raise RequestError(f"{where}: {why}", param=where, code="unsupported")


async def whole(
    run: Run, request: ChatRequest, asked: Asked, identity: Identity, plane: DataPlane
) -> answers.ChatCompletion:
    """Waits for every choice and answers with all of them."""
    choices = []
    thought_tokens = 0
    for piece in await run.collect():
        assert piece.finish is not None
        logprobs = chat_logprobs(plane.tokenizer, piece.tokens) if request.logprobs else None
        message, ended = answers.ChatMessage(piece.text), Ending(piece.finish)
        if asked.form is not None:
            reader = asked.reader()
            message = _message(Answer.of(reader.read(piece)))
            thought_tokens += reader.thought_tokens
            ended = Ending.of(reader, piece.finish, plane.metrics)
        choices.append(
            answers.ChatChoice(piece.choice, message, ended.reason, logprobs, piece.stop_reason, ended.malformed)
        )
    return answers.ChatCompletion(
        id=identity.id,
        created=identity.created,
        model=identity.model,
        system_fingerprint=identity.fingerprint,
        choices=choices,
        usage=answers.usage(run.usage, None if asked.form is None else thought_tokens),
    )


def _message(answer: Answer) -> answers.ChatMessage:
    calls = [answers.ToolCall(call.id, answers.CalledFunction(call.name, call.arguments)) for call in answer.calls]
    return answers.ChatMessage(
        answer.content or (None if calls else ""),
        reasoning_content=answer.thought or msgspec.UNSET,
        tool_calls=calls or msgspec.UNSET,
    )
