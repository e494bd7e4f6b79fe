"""Constraints that other packages bring, found by entry point and held to their word."""

import json
import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trimaran.base.errors import ConstraintError, RequestError
from trimaran.base.grammar import Grammar
from trimaran.engine.constraints.matcher import Matcher, UInt32
from trimaran.engine.constraints.protocol import ENTRY_POINTS, TokenConstraint, Vocabulary
from trimaran.engine.constraints.tokens import TokenTable

log = logging.getLogger(__name__)

Make = Callable[[Vocabulary], TokenConstraint[Any]]


class CustomConstraints:
    """Loads each constraint when it is first named. Used by one thread."""

    def __init__(self, table: Callable[[], TokenTable]) -> None:
        self._table = table
        self._vocabulary: Vocabulary | None = None
        self._given: dict[str, Make] = {}
        self._loaded: dict[str, Custom] = {}

    def add(self, name: str, make: "Make") -> None:
        """Offers a constraint that is no entry point, under a name that goes before theirs."""
        self._given[name] = make
        self._loaded.pop(name, None)

    def vocabulary(self) -> Vocabulary:
        """What constraints are made with; raises ``TrimaranError`` where there is none."""
        if self._vocabulary is None:
            table = self._table()
            tokens = [b"" if i in table.control_ids or i in table.eos_ids else t for i, t in enumerate(table.tokens)]
            self._vocabulary = Vocabulary(tokens, table.eos_ids)
        return self._vocabulary

    def start(self, grammar: Grammar, prompt: Sequence[int]) -> Matcher:
        """A matcher for a request; raises ``RequestError``, or ``ConstraintError`` when the constraint fails."""
        name, argument = _named(grammar)
        custom = self._loaded.get(name) or self._load(name, grammar.field)
        try:
            state = custom.constraint.start(prompt, argument)
        except ValueError as error:
            raise RequestError(f"{grammar.field}: {error}", param=grammar.field) from None
        except Exception as error:
            raise custom.failure(error) from error
        return Matcher(custom, state, grammar.field, drafts=False)

    def _load(self, name: str, field: str) -> "Custom":
        from importlib.metadata import entry_points  # here: few engines ever need it, and it imports a lot

        offered = {found.name: found for found in entry_points(group=ENTRY_POINTS)}
        if name not in offered and name not in self._given:
            known = ", ".join(sorted({*offered, *self._given})) or "none"
            raise RequestError(f"{field}: no constraint {name!r} is installed (there are: {known})", param=field)
        vocabulary = self.vocabulary()
        try:
            make: Make = self._given.get(name) or offered[name].load()
            constraint = make(vocabulary)
        except Exception as error:
            raise _failure(name, error) from error
        return self._loaded.setdefault(name, Custom(name, constraint, vocabulary.words))


class Custom:
    """The kind of all matchers of one such constraint."""

    def __init__(self, name: str, constraint: TokenConstraint[Any], words: int) -> None:
        self.name = name
        self.constraint = constraint
        self._words = words

    def failure(self, error: Exception) -> ConstraintError:
        """What a request that ``error`` ends is told; the log has the rest."""
        return _failure(self.name, error)

    def advance(self, matchers: Sequence[Matcher], tokens: Sequence[int]) -> None:
        """See ``Kind``."""
        try:
            states = self.constraint.advance([matcher.state for matcher in matchers], tokens)
            if len(states) != len(matchers):
                raise ValueError(f"advance returned {len(states)} states for {len(matchers)}")
        except Exception as error:
            self._blame(error, matchers, lambda i: self.advance(matchers[i : i + 1], tokens[i : i + 1]))
            return
        for matcher, state in zip(matchers, states, strict=True):
            matcher.state, matcher.finished = state, state is None

    def forced(self, matcher: Matcher, most: int) -> tuple[int, ...]:  # noqa: ARG002  # takes no drafts
        """See ``Kind``."""
        return ()

    def accepted(self, matcher: Matcher, draft: tuple[int, ...]) -> tuple[int, ...]:  # noqa: ARG002  # takes no drafts
        """See ``Kind``."""
        return ()

    def masks(self, matchers: Sequence[Matcher], drafts: Sequence[tuple[int, ...]]) -> UInt32:
        """See ``Kind``."""
        assert not any(drafts), "a draft for a constraint that takes none"
        try:
            found = self.constraint.mask([matcher.state for matcher in matchers])
            if found.shape != (len(matchers), self._words) or found.dtype != np.uint32:
                wanted = f"uint32 {[len(matchers), self._words]}"
                raise ValueError(f"mask returned {found.dtype} {list(found.shape)} where {wanted} was wanted")
        except Exception as error:
            alone: list[UInt32] = []
            self._blame(error, matchers, lambda i: alone.append(self.masks(matchers[i : i + 1], ((),))))
            return np.concatenate(alone) if alone else np.zeros((1, self._words), np.uint32)
        return np.ascontiguousarray(found)

    def nothing_left(self) -> ConstraintError:
        """See ``Kind``."""
        return self.failure(ValueError("mask allows no token"))

    def _blame(self, error: Exception, matchers: Sequence[Matcher], alone: Callable[[int], None]) -> None:
        """One after the other, so that only those fail who do so alone too."""
        if len(matchers) == 1:
            matchers[0].error = self.failure(error)
            return
        for place in range(len(matchers)):
            alone(place)


def _failure(name: str, error: Exception) -> ConstraintError:
    log.error("constraint %s failed", name, exc_info=error)
    return ConstraintError(f"the constraint {name!r} failed: {type(error).__name__}")


def _named(grammar: Grammar) -> tuple[str, Any]:
    try:
        value = json.loads(grammar.text)
        return value["name"], value.get("argument")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise RequestError(f"{grammar.field} must name a constraint", param=grammar.field) from None
