"""What a parser tells of an answer, piece by piece."""

import msgspec


class Content(msgspec.Struct, frozen=True):
    """More of the answer's text."""

    text: str


class Thought(msgspec.Struct, frozen=True):
    """More of the thought before the answer."""

    text: str


class CallBegin(msgspec.Struct, frozen=True):
    """A tool call begins; ``index`` counts an answer's calls from 0."""

    index: int
    id: str
    name: str


class Arguments(msgspec.Struct, frozen=True):
    """More of a call's arguments; all of them together are a JSON object."""

    index: int
    text: str


Delta = Content | Thought | CallBegin | Arguments


def merged(deltas: list[Delta]) -> list[Delta]:
    """Neighbours of one kind as one."""
    result: list[Delta] = []
    for delta in deltas:
        last = result[-1] if result else None
        if isinstance(delta, Content) and isinstance(last, Content):
            result[-1] = Content(last.text + delta.text)
        elif isinstance(delta, Thought) and isinstance(last, Thought):
            result[-1] = Thought(last.text + delta.text)
        elif isinstance(delta, Arguments) and isinstance(last, Arguments) and delta.index == last.index:
            result[-1] = Arguments(delta.index, last.text + delta.text)
        else:
            result.append(delta)
    return result
