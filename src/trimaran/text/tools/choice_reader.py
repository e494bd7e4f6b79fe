"""One choice's pieces to what is in them: a parser behind text streaming."""

from dataclasses import dataclass, field

from trimaran.text.choice import Piece
from trimaran.text.tools.call_ids import call_ids
from trimaran.text.tools.deltas import Arguments, CallBegin, Content, Delta, Thought, merged
from trimaran.text.tools.parser import AnswerForm, AnswerParser


class ChoiceReader:
    """Reads the pieces of one choice. ``thought_tokens`` are those of its thought, the marks around it included."""

    def __init__(self, form: AnswerForm, *, made: int = 0, enforced: bool = False) -> None:
        """``made`` calls came before in the conversation; ``enforced`` is as in ``AnswerParser``."""
        self._markup = form.markup
        self._parser = AnswerParser(form, call_ids(form.tools, made), enforced=enforced)
        self._given = 0  # characters of text
        self._marks = 0  # control tokens that are characters to the parser
        self._places: list[int] = []  # where tokens begin, for the parser, for as long as they may be of the thought
        self.thought_tokens = 0

    @property
    def calls(self) -> int:
        """Calls so far."""
        return self._parser.calls

    @property
    def malformed(self) -> list[str]:
        """What is wrong with each call that is none."""
        return self._parser.malformed

    def read(self, piece: Piece) -> list[Delta]:
        """What ``piece`` adds."""
        parser = self._parser
        text = self._markup.merged(piece.text, piece.tokens, piece.offsets, self._given)
        self._given += len(piece.text)
        if parser.thinking:
            for token, offset in zip(piece.tokens, piece.offsets, strict=True):
                self._places.append(offset + self._marks)
                self._marks += token.id in self._markup
        deltas = parser.feed(text)
        if piece.finish is not None:
            deltas += parser.finish()
        if self._places and (piece.finish is not None or not parser.thinking):
            self.thought_tokens = sum(place < parser.thought_end for place in self._places)
            self._places.clear()
        return merged(deltas)


@dataclass
class Call:
    id: str
    name: str
    arguments: str = ""


@dataclass
class Answer:
    """All that a choice said, joined."""

    content: str = ""
    thought: str = ""
    calls: list[Call] = field(default_factory=list)

    @classmethod
    def of(cls, deltas: list[Delta]) -> "Answer":
        answer = cls()
        for delta in deltas:
            match delta:
                case Content(text):
                    answer.content += text
                case Thought(text):
                    answer.thought += text
                case CallBegin(_, call_id, name):
                    answer.calls.append(Call(call_id, name))
                case Arguments(index, text):
                    answer.calls[index].arguments += text
        return answer
