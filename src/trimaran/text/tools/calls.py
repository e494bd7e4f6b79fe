"""Reads one tool call in the way of each kind of format."""

import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from trimaran.text.tools.argument_types import argument_types, json_value
from trimaran.text.tools.formats import NamedCall, ObjectCall, TaggedCall, ToolFormat
from trimaran.text.tools.outlet import Outlet
from trimaran.text.tools.reader import MalformedCallError, Reader, Sink, Steps, parts_of

NAME_LENGTH = 256  # characters of a name or key after which it is none

Parameters = Mapping[str, Mapping[str, Any]]  # the offered functions' schemas of arguments


class CallReader:
    """Reads calls of one format; ``new_id`` makes an id for a call to a function."""

    def __init__(
        self, form: ToolFormat, offered: Parameters, reader: Reader, outlet: Outlet, new_id: Callable[[str], str]
    ) -> None:
        self._form, self._offered, self._reader, self._outlet, self._new_id = form, offered, reader, outlet, new_id

    def call(self) -> Steps[None]:
        """Reads a call and tells it; raises ``MalformedCallError``."""
        shape = self._form.call
        if isinstance(shape, ObjectCall):
            return self._object(shape)
        if isinstance(shape, NamedCall):
            return self._named(shape)
        return self._tagged(shape)

    def _object(self, shape: ObjectCall) -> Steps[None]:
        name: str | None = None
        early: list[str] = []  # arguments that came before the name
        seen = set()
        yield from self._expect("{")
        while True:
            key = yield from self._string("a key")
            if key in seen:
                raise MalformedCallError(f"the key {key!r:.80} twice")
            seen.add(key)
            yield from self._expect(":")
            if key == "name":
                name = self._known((yield from self._string("a name")))
                if early:
                    self._begin(name)
                    self._outlet.arguments("".join(early))
            elif key == shape.arguments:
                if name is not None:
                    yield from self._brace()
                    self._begin(name)
                    yield from self._reader.json(self._outlet.arguments)
                else:
                    yield from self._json_object(early.append)
            elif key in shape.also:
                yield from self._reader.json(lambda _: None)
            else:
                raise MalformedCallError(f"a call has no key {key!r:.80}")
            yield from self._reader.space()
            if not (yield from self._reader.exactly(",")):
                break
        yield from self._expect("}")
        for needed in ("name", shape.arguments):
            if needed not in seen:
                raise MalformedCallError(f"a call needs the key {needed!r}")

    def _named(self, shape: NamedCall) -> Steps[None]:
        yield from self._literal(shape.before)
        first = parts_of(shape.between)[0]
        stops = (shape.id_mark, first) if shape.id_mark else (first,)
        written, stop = yield from self._word(stops)
        match = _name_pattern(shape.name).fullmatch(written)
        if match is None:
            raise MalformedCallError(f"{written!r:.80} is no name")
        name, call_id = self._known(match["f"]), None
        if stop == shape.id_mark:
            yield from self._reader.exactly(stop)
            call_id, _ = yield from self._word((first,))
            if not call_id:
                raise MalformedCallError("an empty id")
        yield from self._literal(shape.between)
        yield from self._brace()
        self._begin(name, call_id)
        yield from self._reader.json(self._outlet.arguments)
        yield from self._literal(shape.after)

    def _tagged(self, shape: TaggedCall) -> Steps[None]:
        yield from self._literal(shape.before)
        after = shape.after or self._form.end
        stops = parts_of(shape.between)[:1] or (shape.argument, parts_of(after)[0])
        name = self._known((yield from self._word(stops))[0])
        yield from self._literal(shape.between)
        self._begin(name)
        seen: set[str] = set()
        while (yield from self._reader.literal(shape.argument)):
            yield from self._argument(shape, name, seen)
        self._outlet.arguments("}" if seen else "{}")
        yield from self._literal(shape.after)

    def _argument(self, shape: TaggedCall, name: str, seen: set[str]) -> Steps[None]:
        key, _ = yield from self._word(tuple(parts_of(text)[0] for text, _ in shape.keys))
        if key in seen:
            raise MalformedCallError(f"the argument {key!r:.80} twice")
        types = argument_types(self._offered[name], key)
        for text, kind in shape.keys:
            if (yield from self._reader.literal(text)):
                types = types if kind is None else frozenset({kind})
                break
        else:
            raise MalformedCallError("what follows an argument's name is not what should")
        self._outlet.arguments(("{" if not seen else ", ") + json.dumps(key, ensure_ascii=False) + ": ")
        seen.add(key)
        value = _StringValue(self._outlet.arguments, shape.padding)
        parts: list[str] = []
        is_string = types == {"string"}
        end = parts_of(shape.value_end)[:1]
        if (yield from self._reader.until(end, value.write if is_string else parts.append)) is None:
            raise MalformedCallError(f"it ends inside the argument {key!r:.80}")
        if not is_string:
            text = "".join(parts)
            if (meant := json_value(text, types)) is not None:
                self._outlet.arguments(meant)
            elif "string" in types:
                value.write(text)
                is_string = True
            else:
                raise MalformedCallError(f"the argument {key!r:.80} is not JSON")
        if is_string:
            value.end()
        yield from self._literal(shape.value_end)

    def _begin(self, name: str, call_id: str | None = None) -> None:
        self._outlet.begin(name, call_id or self._new_id(name))

    def _known(self, name: str) -> str:
        if name not in self._offered:
            raise MalformedCallError(f"the function {name!r:.80} was not offered")
        return name

    def _word(self, stops: tuple[str, ...]) -> Steps[tuple[str, str]]:
        """A name or key without white space around it, and what it ends at, which is not read."""
        parts: list[str] = []
        size = 0

        def sink(text: str) -> None:
            nonlocal size
            size += len(text)
            if size > NAME_LENGTH:
                raise MalformedCallError("a name without an end")
            parts.append(text)

        stop = yield from self._reader.until(stops, sink)
        if stop is None:
            raise MalformedCallError("it ends inside a name")
        return "".join(parts).strip(), stop

    def _literal(self, text: str) -> Steps[None]:
        if not (yield from self._reader.literal(text)):
            raise MalformedCallError(f"no {text.strip()!r} where it should be")

    def _expect(self, char: str) -> Steps[None]:
        yield from self._literal(char)

    def _string(self, what: str) -> Steps[str]:
        parts: list[str] = []
        yield from self._reader.space()
        if (yield from self._reader.peek(1)) != '"':
            raise MalformedCallError(f"no {what} where it should be")
        yield from self._reader.json(parts.append)
        text: str = json.loads("".join(parts))
        return text

    def _brace(self) -> Steps[None]:
        yield from self._reader.space()
        if (yield from self._reader.peek(1)) != "{":
            raise MalformedCallError("the arguments are not a JSON object")

    def _json_object(self, sink: Sink) -> Steps[None]:
        yield from self._brace()
        yield from self._reader.json(sink)


class _StringValue:
    """A value that is written as it is, on its way to JSON; a line break of ``padding`` at each end is not its own."""

    def __init__(self, sink: Sink, padding: str) -> None:
        self._sink = sink
        self._padding = padding
        self._begun = False
        self._held = ""

    def write(self, text: str) -> None:
        text = self._held + text
        if not self._begun:
            self._begin()
            text = text.removeprefix(self._padding)
        self._held = self._padding if self._padding and text.endswith(self._padding) else ""
        self._sink(_escaped(text.removesuffix(self._held)))

    def end(self) -> None:
        if not self._begun:
            self._begin()
        self._sink('"')

    def _begin(self) -> None:
        self._begun = True
        self._sink('"')


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


@lru_cache(maxsize=16)
def _name_pattern(form: str) -> re.Pattern[str]:
    """``functions.{f}:{n}`` as a pattern; what stands before the name may be left out."""
    before, _, after = form.partition("{f}")
    numbered = re.escape(after).replace(re.escape("{n}"), "[0-9]+")
    return re.compile(f"(?:{re.escape(before)})?(?P<f>.*?){numbered}", re.DOTALL)
