"""Collects what a parser finds: white space around calls and thoughts goes, calls are held until they are sound."""

from collections.abc import Callable

from trimaran.text.tools.deltas import Arguments, CallBegin, Content, Delta, Thought, merged
from trimaran.text.tools.markup import Markup
from trimaran.text.tools.reader import SPACE


class Outlet:
    """What has been found and not been taken yet. With ``hold`` a call comes once it is known to be complete."""

    def __init__(self, markup: Markup, *, hold: bool, trims: bool) -> None:
        """``trims``: white space beside calls is layout; where there can be none, text is passed on as it is."""
        self.calls = 0
        self.malformed: list[str] = []
        self._markup = markup
        self._hold = hold
        self._trims = trims
        self._deltas: list[Delta] = []
        self._call: list[Delta] | None = None  # the one that is being read
        self._gap = ""  # white space that may turn out to be layout
        self._fresh = False  # nothing but white space since a thought or a call

    def take(self) -> list[Delta]:
        """What can be told since the last time."""
        deltas, self._deltas = self._deltas, []
        return merged(deltas)

    def content(self, text: str) -> None:
        self._text(self._markup.drop(text), Content, self._trims)

    def thought(self, text: str) -> None:
        self._text(self._markup.drop(text), Thought, True)

    def layout(self) -> None:
        """A thought or a block of calls begins or ends here."""
        self._gap, self._fresh = "", True

    def begin(self, name: str, call_id: str) -> None:
        """A call begins, unless its format turns out to be broken."""
        self._call = []
        self._say(CallBegin(self.calls, call_id, name))

    def arguments(self, text: str) -> None:
        self._say(Arguments(self.calls, self._markup.show(text)))

    def end(self) -> None:
        """The call is complete."""
        assert self._call is not None
        self._deltas += self._call
        self._call = None
        self.calls += 1
        self.layout()

    def cut(self) -> None:
        """The answer ends inside the call; what has been told of it stays."""
        self.calls += self._call is not None
        self._call = None
        self.layout()

    def reject(self, raw: str, why: str | None) -> None:
        """The call is none: what was read of it is text, unless some of it has been told already.

        ``why`` is None where it only looked like one.
        """
        told = self._call is not None and not self._hold
        if why is not None:
            self.malformed.append(why)
        self._call = None
        if told:
            self.calls += 1
            self.layout()
            return
        self._fresh = False
        self._deltas += [Content(self._gap + self._markup.show(raw))]
        self._gap = ""

    def finish(self) -> None:
        """Nothing follows: white space at the end was not layout."""
        if self._gap:
            self._deltas.append(Content(self._gap))
        self._gap = ""

    def _say(self, delta: Delta) -> None:
        if self._hold:
            assert self._call is not None
            self._call.append(delta)
        else:
            self._deltas.append(delta)

    def _text(self, text: str, kind: Callable[[str], Delta], trims: bool) -> None:
        if self._fresh:
            text = text.lstrip(SPACE)
        if not text:
            return
        self._fresh = False
        kept = text.rstrip(SPACE) if trims else text
        if not kept:
            self._gap += text
            return
        self._deltas.append(kind(self._gap + kept))
        self._gap = text[len(kept) :]
