"""The Python API: ``LLM`` runs a model inside this process.

from trimaran import LLM, SamplingParams

with LLM("smollm2") as llm:
    print(llm.generate("The capital of France is", SamplingParams(max_tokens=8, temperature=0))[0].text)
    for delta in llm.chat([{"role": "user", "content": "Hello"}], stream=True):
        print(delta.text, end="", flush=True)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, overload

from trimaran.base.errors import QueueFullError, RequestError, TrimaranError
from trimaran.base.failures import error_of
from trimaran.base.fanout import fan_out
from trimaran.base.interrupt import interrupt_deferred
from trimaran.base.messages import Failed, Submit, Tokens
from trimaran.base.sampling import SamplingParams
from trimaran.checkpoint import open_checkpoint
from trimaran.checkpoint.sources import resolve
from trimaran.checkpoint.verify import text_files
from trimaran.completion import Completion, Delta, Output
from trimaran.engine.config import EngineConfig
from trimaran.engine.constraints.protocol import TokenConstraint, Vocabulary
from trimaran.engine.load import load_engine
from trimaran.text.chat_messages import contents
from trimaran.text.choice import Choice, Piece
from trimaran.text.template import open_template
from trimaran.text.tokenizer import open_tokenizer

Prompt = str | Sequence[int]
Message = Mapping[str, Any]
DRAFTED = 8  # most tokens of a draft, as servers have it


class LLM:
    """A model and its engine. Call it from one thread; close it, or use it as a context manager.

    Results come in the order of the prompts. Prompts that share a beginning share its computation, also across calls.
    An error of one prompt (``ContextLengthError``, …) or Ctrl-C cancels the call's other prompts and leaves the engine
    usable.
    """

    def __init__(
        self, model: str, *, offline: bool = False, chat_template: str | Path | None = None, **options: Any
    ) -> None:
        """``model`` is a catalogue name, a source or a path (``trimaran pull``); ``options`` go to ``EngineConfig``;
        drafts are on unless ``speculative_ngram`` is 0. ``chat_template`` names a Jinja file to use in place of the
        model's own.

        Raises ``SourceError``, ``CheckpointError``, ``ConfigError`` or ``UnsupportedError``.
        """
        config = EngineConfig.from_json(options)  # fail on a wrong option before a download
        local = resolve(model, offline=offline)
        files = text_files(local.path, config.verify, config.manifest_key)
        with open_checkpoint(local.path, files) as checkpoint:
            self.tokenizer = open_tokenizer(checkpoint)
            self._template = open_template(
                checkpoint, self.tokenizer, None if chat_template is None else Path(chat_template)
            )
        given = {"served_name": local.name, "speculative_ngram": DRAFTED, **options, "model": str(local.path)}
        self._engine = load_engine(EngineConfig.from_json(given))
        self.info = self._engine.info
        self._closed = False
        self._inboxes: dict[str, deque[Tokens | Failed]] = {}  # of calls in progress, by request
        self._submitted = 0

    @overload
    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        stream: Literal[False] = False,
    ) -> list[Completion]: ...
    @overload
    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        stream: Literal[True],
    ) -> Iterator[Delta]: ...
    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        stream: bool = False,
    ) -> list[Completion] | Iterator[Delta]:
        """Continues one prompt or several; a prompt is text or token ids, ``params`` one for all or one for each.

        Returns a ``Completion`` for each prompt, or with ``stream`` an iterator of ``Delta``; closing it cancels what
        still runs. Raises ``RequestError`` on bad prompts or parameters.
        """
        ids = [self._prompt_ids(prompt) for prompt in _as_list(prompts)]
        return self._answer(ids, params, stream, message=False)

    @overload
    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        stream: Literal[False] = False,
        **template: Any,
    ) -> list[Completion]: ...
    @overload
    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        stream: Literal[True],
        **template: Any,
    ) -> Iterator[Delta]: ...
    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        stream: bool = False,
        **template: Any,
    ) -> list[Completion] | Iterator[Delta]:
        """Answers one conversation or several through the model's chat template; ``template`` are its arguments.

        Messages are ``{"role": …, "content": …}``; control tokens in them are plain text. Else as ``generate``.
        """
        conversations: list[Any] = [messages] if messages and isinstance(messages[0], Mapping) else list(messages)
        ids = []
        for conversation in conversations:
            self.tokenizer.require_room(*contents(conversation), context=self.info.context, param="messages")
            ids.append(self._template.render(conversation, **template))
        return self._answer(ids, params, stream, message=True)

    def add_constraint(self, name: str, make: Callable[[Vocabulary], TokenConstraint[Any]]) -> None:
        """Lets grammars of kind ``constraint`` name what ``make`` returns; called once, with the model's vocabulary."""
        self._engine.constraints.add(name, make)

    def close(self) -> None:
        """Frees the engine's memory and threads; idempotent."""
        if not self._closed:
            self._closed = True
            self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _answer(
        self,
        prompts: list[list[int]],
        params: SamplingParams | Sequence[SamplingParams] | None,
        stream: bool,
        *,
        message: bool,
    ) -> list[Completion] | Iterator[Delta]:
        self._require_open()
        sampling = _spread(params, len(prompts))
        if stream:
            return self._run(prompts, sampling, message)
        parts: list[list[list[Delta]]] = [[[] for _ in range(params.n)] for params in sampling]
        for delta in self._run(prompts, sampling, message):
            parts[delta.prompt][delta.choice].append(delta)
        return [
            Completion(tuple(ids), tuple(map(_joined, choices)), choices[0][-1].cached_tokens)
            for ids, choices in zip(prompts, parts, strict=True)
        ]

    def _run(self, prompts: list[list[int]], sampling: list[SamplingParams], message: bool) -> Iterator[Delta]:
        """Owns its requests: whatever ends the iteration, none of them is left in the engine.

        ``message``: answers are messages, rather than text that goes on from a prompt.
        """
        inbox: deque[Tokens | Failed] = deque()
        requests: dict[str, tuple[int, Choice, bool]] = {}  # those not ended: prompt, choice, with logprobs
        queued: deque[Submit] = deque()
        for prompt, (ids, params) in enumerate(zip(prompts, sampling, strict=True)):
            for index, one in enumerate(fan_out(params)):
                self._submitted += 1
                submit = Submit(str(self._submitted), ids, one)
                choice = Choice(index, self.tokenizer, params, message=message)
                requests[submit.id] = prompt, choice, params.logprobs is not None
                queued.append(submit)
        try:
            while requests:
                self._submit_from(queued, inbox)
                if not inbox:
                    self._step()
                while inbox:
                    sent = inbox.popleft()
                    if sent.id not in requests:  # its choice has met a stop string
                        continue
                    if isinstance(sent, Failed):
                        raise error_of(sent)
                    prompt, choice, with_logprobs = requests[sent.id]
                    piece = choice.feed(sent)
                    if piece.finish is not None:
                        del requests[sent.id]
                        self._forget(sent.id)
                    yield _delta(prompt, piece, sent.cached, with_logprobs)
        finally:
            with interrupt_deferred():
                for request in requests:
                    self._forget(request)

    def _submit_from(self, queued: deque[Submit], inbox: deque[Tokens | Failed]) -> None:
        """Submits as many as the engine takes now."""
        with suppress(QueueFullError), interrupt_deferred():
            while queued:
                self._engine.submit(queued[0])
                self._inboxes[queued.popleft().id] = inbox

    def _forget(self, request: str) -> None:
        if self._inboxes.pop(request, None) is not None:
            self._engine.cancel(request)  # no effect on one that has ended

    def _step(self) -> None:
        """One step of the engine, for all calls in progress."""
        self._require_open()
        with interrupt_deferred():
            for message in self._engine.step():
                if isinstance(message, Tokens | Failed) and message.id in self._inboxes:
                    self._inboxes[message.id].append(message)

    def _require_open(self) -> None:
        if self._closed:
            raise TrimaranError("this LLM is closed")

    def _prompt_ids(self, prompt: Prompt) -> list[int]:
        if not isinstance(prompt, str):
            return list(prompt)
        self.tokenizer.require_room(prompt, context=self.info.context, param="prompt")
        return self.tokenizer.encode_prompt(prompt)


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
        return [prompts]  # type: ignore[list-item]  # one prompt: text, or its ids
    return list(prompts)  # type: ignore[arg-type]


def _spread(params: SamplingParams | Sequence[SamplingParams] | None, prompts: int) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * prompts
    if len(params) != prompts:
        raise RequestError(f"{len(params)} sampling parameters were given for {prompts} prompts", param="params")
    return list(params)


def _delta(prompt: int, piece: Piece, cached: int, with_logprobs: bool) -> Delta:
    return Delta(
        prompt=prompt,
        choice=piece.choice,
        text=piece.text,
        token_ids=tuple(token.id for token in piece.tokens),
        finish_reason=piece.finish,
        stop_reason=piece.stop_reason,
        logprobs=piece.tokens if with_logprobs else None,
        cached_tokens=cached,
    )


def _joined(deltas: list[Delta]) -> Output:
    last = deltas[-1]
    assert last.finish_reason is not None
    logprobs = None if last.logprobs is None else tuple(token for delta in deltas for token in delta.logprobs or ())
    return Output(
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(token for delta in deltas for token in delta.token_ids),
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        logprobs=logprobs,
    )
