"""An answer's text to content, thought and tool calls, as it streams: one machine for all three.

What it tells, joined, does not depend on how the text was cut. No text makes it raise. A call that is not what its
family's format says is reported (``malformed``) and its text given as content; nothing in it is guessed.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from trimaran.text.tools.calls import CallReader, Parameters
from trimaran.text.tools.deltas import Delta
from trimaran.text.tools.formats import ReasoningFormat, ToolFormat
from trimaran.text.tools.markup import Markup
from trimaran.text.tools.outlet import Outlet
from trimaran.text.tools.reader import MalformedCallError, Reader, Steps, parts_of

Thinking = Literal["no", "begun", "maybe"]  # no thought can come; the prompt has begun one; the answer may begin one


@dataclass(frozen=True)
class AnswerForm:
    """What an answer may hold; the texts of both formats have been through ``markup``."""

    markup: Markup
    reasoning: ReasoningFormat | None = None
    thinking: Thinking = "no"
    tools: ToolFormat | None = None
    offered: Parameters = field(default_factory=dict)


class AnswerParser:
    """One answer. ``malformed`` says what was wrong with each call that was none, ``calls`` counts the others."""

    def __init__(self, form: AnswerForm, new_id: Callable[[str], str], *, enforced: bool) -> None:
        """``enforced``: a grammar lets no malformed call through, so that arguments may be told as they come. Else a
        call is held until it is known to be sound, because what has been told cannot be taken back.
        """
        self._form = form
        self._enforced = enforced
        self._reader = Reader()
        self._outlet = Outlet(form.markup, hold=not enforced, trims=form.tools is not None)
        self._calls = (
            None if form.tools is None else CallReader(form.tools, form.offered, self._reader, self._outlet, new_id)
        )
        self.thinking = False  # a thought is under way, or may be about to begin
        self.thought_end = 0  # how many characters were read when it ended
        self._machine = self._answer()
        self._done = False
        self._run()

    @property
    def calls(self) -> int:
        return self._outlet.calls

    @property
    def malformed(self) -> list[str]:
        return self._outlet.malformed

    def feed(self, text: str) -> list[Delta]:
        """Reads on; ``text`` may hold control tokens as ``Markup`` writes them."""
        self._reader.feed(text)
        self._run()
        return self._outlet.take()

    def finish(self) -> list[Delta]:
        """The answer has ended: tells all that was held back."""
        self._reader.end()
        self._run()
        self._outlet.finish()
        return self._outlet.take()

    def _run(self) -> None:
        if not self._done:
            self._done = next(self._machine, True) is True

    def _answer(self) -> Steps[None]:
        form = self._form
        begins = () if form.tools is None else parts_of(form.tools.begin)[:1]
        found = None
        if form.reasoning is not None and form.thinking != "no":
            found = yield from self._thought(form.reasoning, begins)
        if found is None and form.tools is not None and form.tools.bare:
            yield from self._bare()
        while found is not None or (yield from self._reader.until(begins, self._outlet.content)) is not None:
            found = None
            yield from self._block()

    def _thought(self, reasoning: ReasoningFormat, begins: tuple[str, ...]) -> Steps[str | None]:
        """Reads a thought if there is one; returns the mark of a tool call that ended it, which is not read."""
        self.thinking = True
        try:
            if self._form.thinking == "maybe":
                space = yield from self._reader.space()
                if not (yield from self._reader.exactly(reasoning.begin)):
                    self._outlet.content(space)
                    return None
            self._outlet.layout()
            found = yield from self._reader.until((reasoning.end, *begins), self._outlet.thought)
            self._outlet.layout()
            if found == reasoning.end:
                yield from self._reader.exactly(reasoning.end)
            self.thought_end = self._reader.position
            return None if found == reasoning.end else found
        finally:
            self.thinking = False

    def _block(self) -> Steps[None]:
        """Reads the calls between the marks of a block, whose first is next."""
        assert self._form.tools is not None
        assert self._calls is not None
        form = self._form.tools
        self._reader.mark()
        try:
            for mark in (form.begin, form.opening):
                if not (yield from self._reader.literal(mark)):
                    raise MalformedCallError(f"no {mark.strip()!r} where it should be")
            while True:
                yield from self._calls.call()
                if not form.several:
                    yield from self._end(form)
                self._outlet.end()
                self._reader.mark()
                if not form.several or not (yield from self._another(form)):
                    self._reader.kept()
                    return
        except MalformedCallError as error:
            if self._enforced and self._reader.exhausted:  # the answer was cut, and says so in another way
                self._outlet.cut()
            else:
                self._outlet.reject(self._reader.kept(), self._form.markup.show(str(error)))

    def _another(self, form: ToolFormat) -> Steps[bool]:
        """Whether one more call follows in the block; reads what is between, or the block's end.

        An answer may stop before the end of a block: its calls are complete.
        """
        if parts_of(form.separator):
            if (yield from self._reader.literal(form.separator)):
                return True
        elif not (yield from self._reader.literal(form.end)):
            return not self._reader.exhausted
        else:
            return False
        yield from self._end(form)
        return False

    def _end(self, form: ToolFormat) -> Steps[None]:
        if not (yield from self._reader.literal(form.end)) and not (form.several and self._reader.exhausted):
            raise MalformedCallError(f"no {form.end.strip()!r} where it should be")

    def _bare(self) -> Steps[None]:
        """A call without marks, if the answer begins with one. What only looks like one is text."""
        assert self._calls is not None
        space = yield from self._reader.space()
        if (yield from self._reader.peek(1)) != "{":
            self._outlet.content(space)
            return
        self._reader.mark(space)
        try:
            yield from self._calls.call()
            self._outlet.end()
            self._reader.kept()
        except MalformedCallError:
            self._outlet.reject(self._reader.kept(), None)
