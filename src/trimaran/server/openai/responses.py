"""``POST /v1/responses``: an answer as items, whole and as a stream of events."""

import itertools
import secrets
from typing import Any

import msgspec

from trimaran.server.dataplane import DataPlane, Run
from trimaran.server.errors import ErrorAnswer
from trimaran.server.openai import answers
from trimaran.server.openai.chat import Asked, Ending
from trimaran.server.openai.identity import Identity
from trimaran.server.openai.responses_schema import Item, ResponsesRequest
from trimaran.text.choice import Piece
from trimaran.text.tools.choice_reader import ChoiceReader
from trimaran.text.tools.deltas import Arguments, CallBegin, Content, Delta, Thought

Event = dict[str, Any]
Response = dict[str, Any]

_KINDS = {"message": "msg", "reasoning": "rs", "function_call": "fc"}  # of items, and how their ids begin


class Output:
    """The items of an answer as they grow, and the events that say so: a whole answer is what the events add up to."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self._open = False  # the last item may still grow

    def feed(self, delta: Delta) -> list[Event]:
        match delta:
            case Content(text):
                return [*self._turn_to("message"), self._grow("output_text", text)]
            case Thought(text):
                return [*self._turn_to("reasoning"), self._grow("reasoning_text", text)]
            case CallBegin(_, call_id, name):
                events = self._close()
                return events + self._begin("function_call", call_id=call_id, name=name, arguments="")
            case Arguments(_, text):
                self.items[-1]["arguments"] += text
                return [self._event("response.function_call_arguments.delta", item_id=self._id, delta=text)]

    def finish(self, status: str) -> list[Event]:
        """No more will come; ``status`` is that of an item that was still open."""
        return self._close(status)

    @property
    def _id(self) -> str:
        name: str = self.items[-1]["id"]
        return name

    def _turn_to(self, kind: str) -> list[Event]:
        if self._open and self.items[-1]["type"] == kind:
            return []
        more: Item = {"role": "assistant"} if kind == "message" else {"summary": []}
        events = self._close() + self._begin(kind, **more, content=[])
        part = _part("output_text" if kind == "message" else "reasoning_text")
        self.items[-1]["content"].append(part)
        return [*events, self._event("response.content_part.added", item_id=self._id, content_index=0, part=dict(part))]

    def _grow(self, kind: str, text: str) -> Event:
        self.items[-1]["content"][0]["text"] += text
        more: dict[str, Any] = {"logprobs": []} if kind == "output_text" else {}
        return self._event(f"response.{kind}.delta", item_id=self._id, content_index=0, delta=text, **more)

    def _begin(self, kind: str, **values: Any) -> list[Event]:
        name = f"{_KINDS[kind]}_{secrets.token_hex(12)}"
        self.items.append({"type": kind, "id": name, "status": "in_progress", **values})
        self._open = True
        return [self._event("response.output_item.added", item=_copy(self.items[-1]))]

    def _close(self, status: str = "completed") -> list[Event]:
        if not self._open:
            return []
        self._open = False
        item = self.items[-1]
        item["status"] = status
        events = []
        if item["type"] == "function_call":
            arguments = item["arguments"]
            events.append(
                self._event(
                    "response.function_call_arguments.done", item_id=self._id, arguments=arguments, name=item["name"]
                )
            )
        else:
            part = item["content"][0]
            more: dict[str, Any] = {"logprobs": []} if part["type"] == "output_text" else {}
            where = {"item_id": self._id, "content_index": 0}
            events.append(self._event(f"response.{part['type']}.done", **where, text=part["text"], **more))
            events.append(self._event("response.content_part.done", **where, part=dict(part)))
        return [*events, self._event("response.output_item.done", item=_copy(item))]

    def _event(self, kind: str, **values: Any) -> Event:
        return {"type": kind, "output_index": len(self.items) - 1, **values}


class Answering:
    """One response on its way: pieces in, events and in the end the response out."""

    def __init__(self, run: Run, request: ResponsesRequest, asked: Asked, identity: Identity, plane: DataPlane) -> None:
        self._run, self._request, self._asked, self._identity, self._plane = run, request, asked, identity, plane
        self._output = Output()
        self._reader: ChoiceReader | None = None if asked.form is None else asked.reader()
        self._malformed: list[str] | msgspec.UnsetType = msgspec.UNSET
        self._reason: str | None = None

    def feed(self, piece: Piece) -> list[Event]:
        plain: list[Delta] = [Content(piece.text)] if piece.text else []
        deltas = plain if self._reader is None else self._reader.read(piece)
        events = [event for delta in deltas for event in self._output.feed(delta)]
        if piece.finish is not None:
            self._reason = piece.finish
            if self._reader is not None:
                self._malformed = Ending.of(self._reader, piece.finish, self._plane.metrics).malformed
            events += self._output.finish("incomplete" if piece.finish == "length" else "completed")
        return events

    def begun(self) -> Response:
        """As it is before anything has been said."""
        return frame(self._request, self._identity, "in_progress")

    def response(self) -> Response:
        """As it has ended."""
        cut = self._reason == "length"
        body = self._ended("incomplete" if cut else "completed")
        body["incomplete_details"] = {"reason": "max_output_tokens"} if cut else None
        if self._malformed is not msgspec.UNSET:
            body["malformed_tool_calls"] = self._malformed
        return body

    def cut_short(self, status: str) -> Response:
        """As far as it came, when it ends before the model has ended it: cancelled or failed."""
        self._output.finish("incomplete")
        return self._ended(status)

    def _ended(self, status: str) -> Response:
        body = frame(self._request, self._identity, status)
        return body | {"output": [_copy(item) for item in self._output.items], "usage": self._usage()}

    def _usage(self) -> dict[str, Any]:
        thoughts = 0 if self._reader is None else self._reader.thought_tokens
        counts = answers.usage(self._run.usage, thoughts)
        return {
            "input_tokens": counts.prompt_tokens,
            "input_tokens_details": {"cached_tokens": self._run.usage.cached, "cache_write_tokens": 0},
            "output_tokens": counts.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": thoughts},
            "total_tokens": counts.total_tokens,
        }


class Events:
    """The stream of a response. It ends with the response itself, not with ``[DONE]``."""

    done = b""

    def __init__(self, answering: Answering) -> None:
        self._answering = answering
        self._numbers = itertools.count()
        self._begun = False
        self.response: Response | None = None  # once it is complete

    def of(self, piece: Piece) -> bytes:
        events = self._answering.feed(piece)
        if not self._begun:
            self._begun = True
            begun = self._answering.begun()
            events = [{"type": f"response.{kind}", "response": begun} for kind in ("created", "in_progress")] + events
        return b"".join(map(self._encode, events))

    def last(self) -> bytes:
        self.response = self._answering.response()
        return self._encode({"type": f"response.{self.response['status']}", "response": self.response})

    def failed(self, answer: ErrorAnswer) -> bytes:
        error = answer.error
        return self._encode({"type": "error", "code": error.code, "message": error.message, "param": error.param})

    def _encode(self, event: Event) -> bytes:
        data = msgspec.json.encode({**event, "sequence_number": next(self._numbers)})
        return b"event: %s\ndata: %s\n\n" % (event["type"].encode(), data)


async def whole(answering: Answering, run: Run) -> Response:
    """Waits for the answer."""
    for piece in await run.collect():
        answering.feed(piece)
    return answering.response()


def frame(request: ResponsesRequest, identity: Identity, status: str) -> Response:
    """A response without output: what was asked, and by which name it can be asked for."""
    text = {"format": {"type": "text"}}
    if request.text is not None and request.text.format is not None:
        text = {"format": request.text.format.model_dump(exclude_none=True)}
    choice = request.tool_choice
    return {
        "id": identity.id,
        "object": "response",
        "created_at": identity.created,
        "status": status,
        "background": bool(request.background),
        "error": None,
        "incomplete_details": None,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "metadata": request.metadata or {},
        "model": identity.model,
        "output": [],
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": request.previous_response_id,
        "reasoning": {"effort": None if request.reasoning is None else request.reasoning.effort, "summary": None},
        "store": request.store is not False,
        "temperature": 1.0 if request.temperature is None else request.temperature,
        "text": text,
        "tool_choice": (choice or "auto") if isinstance(choice, str | None) else choice.model_dump(),
        "tools": [tool.model_dump() for tool in request.tools or ()],
        "top_p": 1.0 if request.top_p is None else request.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": request.user,
    }


def _part(kind: str) -> dict[str, Any]:
    return {"type": kind, "text": ""} | ({"annotations": [], "logprobs": []} if kind == "output_text" else {})


def _copy(item: Item) -> Item:
    """Apart from what still grows."""
    return {**item, "content": [dict(part) for part in item["content"]]} if "content" in item else dict(item)
