"""Constraints that other packages bring, found by entry point and held to their word."""

import json
import logging
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from typing import Any

import numpy as np

from trimaran.base.errors import ConstraintError, RequestError
from trimaran.base.grammar import Grammar
from trimaran.engine.constraints.matcher import Matcher, UInt32
from trimaran.engine.constraints.protocol import ENTRY_POINTS, TokenConstraint, Vocabulary
from trimaran.engine.constraints.tokens import TokenTable

log = logging.getLogger(__name__)


class CustomConstraints:
    """Loads each constraint when it is first named. Used by one thread."""

    def __init__(self, table: Callable[[], TokenTable]) -> None:
        self._table = table
        self._vocabulary: Vocabulary | None = None
        self._loaded: dict[str, Custom] = {}

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
        return Matcher(custom, state, grammar.field)

    def _load(self, name: str, field: str) -> "Custom":
        offered = {found.name: found for found in entry_points(group=ENTRY_POINTS)}
        if name not in offered:
            known = ", ".join(sorted(offered)) or "none"
            raise RequestError(f"{field}: no constraint {name!r} is installed (there are: {known})", param=field)
        if self._vocabulary is None:
            table = self._table()
            tokens = [b"" if i in table.control_ids or i in table.eos_ids else t for i, t in enumerate(table.tokens)]
            self._vocabulary = Vocabulary(tokens, table.eos_ids)
        try:
            constraint: TokenConstraint[Any] = offered[name].load()(self._vocabulary)
        except Exception as error:
            raise _failure(name, error) from error
        return self._loaded.setdefault(name, Custom(name, constraint))


class Custom:
    """The kind of all matchers of one such constraint."""

    def __init__(self, name: str, constraint: TokenConstraint[Any]) -> None:
        self.name = name
        self.constraint = constraint

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

    def fill(self, matchers: Sequence[Matcher], rows: Sequence[int], masks: UInt32) -> None:
        """See ``Kind``."""
        try:
            found = self.constraint.mask([matcher.state for matcher in matchers])
            if found.shape != (len(matchers), masks.shape[1]) or found.dtype != np.uint32:
                wanted = f"uint32 {[len(matchers), masks.shape[1]]}"
                raise ValueError(f"mask returned {found.dtype} {list(found.shape)} where {wanted} was wanted")
        except Exception as error:
            self._blame(error, matchers, lambda i: self.fill(matchers[i : i + 1], rows[i : i + 1], masks))
            return
        masks[rows] = found
        for place in np.flatnonzero(~found.any(axis=1)).tolist():
            matchers[place].error = self.failure(ValueError("mask allows no token"))

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
