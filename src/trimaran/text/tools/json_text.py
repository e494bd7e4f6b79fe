"""Follows a JSON text (RFC 8259) character by character: where it ends, and the first place where it is none."""

import re

DEPTH = 128  # of arrays and objects; deeper ones are refused, since those who read them recurse
DIGITS = 1000  # of a number; Python refuses to read more than 4300

_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_NUMBER_PART = re.compile(r"[-+.0-9eE]*")
_PLAIN = re.compile(r"[^\"\\\x00-\x1f\ud800-\udfff]*")  # of a string; no text has half of a surrogate pair
_SPACE = re.compile(r"[ \t\n\r]*")
_WORDS = {"t": "true", "f": "false", "n": "null"}
_HEX = frozenset("0123456789abcdefABCDEF")


class JsonError(ValueError):
    """The text is not JSON from character ``at`` on."""

    def __init__(self, at: int, why: str) -> None:
        super().__init__(why)
        self.at = at


class JsonText:
    """One JSON value that arrives in pieces. The answer does not depend on how it was cut."""

    def __init__(self) -> None:
        self.done = False
        self._open: list[str] = []  # brackets
        self._state = "value"
        self._rest = ""  # of a word; of a number, what it has so far
        self._digits = 0  # of \u escapes, still to come
        self._is_key = False

    def feed(self, text: str) -> int:
        """Reads on; returns how many characters belong to the value. Raises ``JsonError``.

        A number ends with the character after it, which does not belong to it.
        """
        at = 0
        while at < len(text) and not self.done:
            at = getattr(self, f"_read_{self._state}")(text, at)
        return at

    def _read_value(self, text: str, at: int) -> int:
        at = self._skip(text, at)
        if at == len(text):
            return at
        char = text[at]
        if char == '"':
            self._state, self._is_key = "string", False
        elif char in "{[":
            self._push(char, at)
        elif char in _WORDS:
            self._state, self._rest = "word", _WORDS[char][1:]
        elif char in "-0123456789":
            self._state, self._rest = "number", char
        elif char == "]" and self._state == "first":
            self._pop(char, at)
        else:
            raise JsonError(at, f"{char!r} where a value should be")
        return at + 1

    _read_first = _read_value  # of an array, which may be empty

    def _read_key(self, text: str, at: int) -> int:
        at = self._skip(text, at)
        if at == len(text):
            return at
        if text[at] == "}" and self._state == "first_key":
            self._pop("}", at)
        elif text[at] == '"':
            self._state, self._is_key = "string", True
        else:
            raise JsonError(at, f"{text[at]!r} where a key should be")
        return at + 1

    _read_first_key = _read_key

    def _read_colon(self, text: str, at: int) -> int:
        at = self._skip(text, at)
        if at == len(text):
            return at
        if text[at] != ":":
            raise JsonError(at, f"{text[at]!r} where a colon should be")
        self._state = "value"
        return at + 1

    def _read_after(self, text: str, at: int) -> int:
        at = self._skip(text, at)
        if at == len(text):
            return at
        if text[at] == ",":
            self._state = "key" if self._open[-1] == "{" else "value"
        else:
            self._pop(text[at], at)
        return at + 1

    def _read_string(self, text: str, at: int) -> int:
        match = _PLAIN.match(text, at)
        assert match is not None
        at = match.end()
        if at == len(text):
            return at
        if text[at] == '"':
            self._end("colon" if self._is_key else None)
        elif text[at] == "\\":
            self._state = "escape"
        else:
            raise JsonError(at, f"{text[at]!r} inside a string")
        return at + 1

    def _read_escape(self, text: str, at: int) -> int:
        if text[at] == "u":
            self._state, self._digits = "hex", 4
        elif text[at] in '"\\/bfnrt':
            self._state = "string"
        else:
            raise JsonError(at, f"{text[at]!r} after a backslash")
        return at + 1

    def _read_hex(self, text: str, at: int) -> int:
        if text[at] not in _HEX:
            raise JsonError(at, f"{text[at]!r} in the number of a character")
        self._digits -= 1
        if not self._digits:
            self._state = "string"
        return at + 1

    def _read_word(self, text: str, at: int) -> int:
        if text[at] != self._rest[0]:
            raise JsonError(at, f"{text[at]!r} in a word")
        self._rest = self._rest[1:]
        if not self._rest:
            self._end()
        return at + 1

    def _read_number(self, text: str, at: int) -> int:
        match = _NUMBER_PART.match(text, at)
        assert match is not None
        end = min(match.end(), at + DIGITS - len(self._rest))
        self._rest += text[at:end]
        if end < match.end():
            raise JsonError(end, f"a number of more than {DIGITS} characters")
        if end < len(text):
            self._end_number(end)
        return end

    def finish(self) -> None:
        """No more text comes. Raises ``JsonError`` unless the value is complete."""
        if self._state == "number":
            self._end_number(0)
        if not self.done:
            raise JsonError(0, "the text ends inside a value")

    def _end_number(self, at: int) -> None:
        if not _NUMBER.fullmatch(self._rest):
            raise JsonError(at, f"{self._rest:.40} is no number")
        self._end()

    def _push(self, bracket: str, at: int) -> None:
        if len(self._open) == DEPTH:
            raise JsonError(at, f"more than {DEPTH} levels")
        self._open.append(bracket)
        self._state = "first_key" if bracket == "{" else "first"

    def _pop(self, bracket: str, at: int) -> None:
        if {"{": "}", "[": "]"}[self._open[-1]] != bracket:
            raise JsonError(at, f"{bracket!r} where a comma or the end should be")
        self._open.pop()
        self._end()

    def _end(self, state: str | None = None) -> None:
        """A value or a key has ended."""
        self._state = state or "after"
        self.done = state is None and not self._open

    def _skip(self, text: str, at: int) -> int:
        match = _SPACE.match(text, at)
        assert match is not None
        return match.end()
