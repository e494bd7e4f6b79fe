"""The stream of ``POST /v1/chat/completions``: pieces to chunks."""

from collections.abc import Iterator

import msgspec

from trimaran.server.dataplane import DataPlane, Run
from trimaran.server.openai import answers
from trimaran.server.openai.chat import Asked, Ending
from trimaran.server.openai.identity import Identity
from trimaran.server.openai.logprobs import chat_logprobs
from trimaran.server.openai.schema import ChatRequest
from trimaran.server.openai.sse import MARK, DataEvents, TextEvent, event
from trimaran.text.choice import Piece
from trimaran.text.tools.choice_reader import ChoiceReader
from trimaran.text.tools.deltas import Arguments, CallBegin, Content, Delta, Thought


class Events(DataEvents):
    """An event for every piece that shows something, and one with the usage when asked for."""

    def __init__(self, run: Run, request: ChatRequest, asked: Asked, identity: Identity, plane: DataPlane) -> None:
        self._run, self._request, self._asked = run, request, asked
        self._identity, self._plane = identity, plane
        self._begun: set[int] = set()  # choices
        self._texts: dict[int, TextEvent] = {}  # by choice, for its content
        self._readers: dict[int, ChoiceReader] = {}  # by choice, where there is more than text

    def of(self, piece: Piece) -> bytes:
        if self._asked.form is not None:
            return self._read(piece)
        if piece.finish is None and not self._request.logprobs:
            return self._content(piece.choice, piece.text) if piece.text else b""
        logprobs = self._logprobs(piece)
        if not piece.text and logprobs is None and piece.finish is None:
            return b""
        begun = piece.choice in self._begun
        delta = answers.Delta(content=piece.text or None) if begun else answers.Delta("assistant", piece.text)
        self._begun.add(piece.choice)
        return self._event(answers.ChunkChoice(piece.choice, delta, logprobs, piece.finish, piece.stop_reason))

    def last(self) -> bytes:
        if not self._request.include_usage:
            return b""
        thoughts = None
        if self._asked.form is not None:
            thoughts = sum(reader.thought_tokens for reader in self._readers.values())
        return event(self._chunk(usage=answers.usage(self._run.usage, thoughts)))

    def _read(self, piece: Piece) -> bytes:
        """The events of a piece that may hold thoughts and calls: one for each kind of thing, one more for the end."""
        reader = self._readers.get(piece.choice)
        if reader is None:
            reader = self._readers[piece.choice] = self._asked.reader()
        return b"".join(self._events(piece, reader, reader.read(piece)))

    def _events(self, piece: Piece, reader: ChoiceReader, deltas: list[Delta]) -> Iterator[bytes]:
        logprobs = self._logprobs(piece)  # go with the first event
        for said in deltas:
            if isinstance(said, Content) and logprobs is None:
                yield self._content(piece.choice, said.text)
                continue
            yield self._event(answers.ChunkChoice(piece.choice, self._role(piece.choice, _delta(said)), logprobs))
            logprobs = None
        if piece.finish is not None:
            end = Ending.of(reader, piece.finish, self._plane.metrics)
            delta = self._role(piece.choice, answers.Delta())
            yield self._event(
                answers.ChunkChoice(piece.choice, delta, logprobs, end.reason, piece.stop_reason, end.malformed)
            )
        elif logprobs is not None:
            yield self._event(answers.ChunkChoice(piece.choice, self._role(piece.choice, answers.Delta()), logprobs))

    def _role(self, choice: int, delta: answers.Delta) -> answers.Delta:
        """``delta`` with the role if it is the first of its choice."""
        if choice in self._begun:
            return delta
        self._begun.add(choice)
        return msgspec.structs.replace(delta, role="assistant")

    def _content(self, choice: int, text: str) -> bytes:
        """An event with nothing but text."""
        if choice not in self._begun:
            return self._event(answers.ChunkChoice(choice, self._role(choice, answers.Delta(content=text))))
        found = self._texts.get(choice)
        if found is None:
            found = TextEvent(self._chunk(answers.ChunkChoice(choice, answers.Delta(content=MARK))))
            self._texts[choice] = found
        return found(text)

    def _logprobs(self, piece: Piece) -> answers.ChatLogprobs | None:
        if not (self._request.logprobs and piece.tokens):
            return None
        return chat_logprobs(self._plane.tokenizer, piece.tokens)

    def _event(self, choice: answers.ChunkChoice) -> bytes:
        return event(self._chunk(choice))

    def _chunk(self, *choices: answers.ChunkChoice, usage: answers.Usage | None = None) -> answers.ChatChunk:
        return answers.ChatChunk(
            id=self._identity.id,
            created=self._identity.created,
            model=self._identity.model,
            system_fingerprint=self._identity.fingerprint,
            choices=list(choices),
            usage=usage if self._request.include_usage else msgspec.UNSET,
        )


def _delta(said: Delta) -> answers.Delta:
    match said:
        case Content(text):
            return answers.Delta(content=text)
        case Thought(text):
            return answers.Delta(reasoning_content=text)
        case CallBegin(index, call_id, name):
            function = answers.FunctionDelta("", name)
            return answers.Delta(tool_calls=[answers.ToolCallDelta(index, call_id, "function", function)])
        case Arguments(index, text):
            return answers.Delta(tool_calls=[answers.ToolCallDelta(index, function=answers.FunctionDelta(text))])
