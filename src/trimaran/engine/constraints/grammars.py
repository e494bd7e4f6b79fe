"""Grammars, compiled and followed by llguidance (https://github.com/guidance-ai/llguidance)."""

import json
import re
import time
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLParserLimits
from llguidance.gbnf_to_lark import any_to_lark

from trimaran.base.errors import ConstraintError, RequestError, TrimaranError
from trimaran.base.grammar import Grammar
from trimaran.engine.constraints.matcher import Matcher, UInt32
from trimaran.engine.constraints.structural_tag import structural_tag
from trimaran.engine.constraints.tokenizer import GrammarTokenizer
from trimaran.text.json_schema import COMPACT, embedded_schema

MAX_FIRST_SECONDS = 0.1  # for the first mask; later ones are bounded by llguidance's own limits
_MAX_LEXER_STATES = 100_000  # about 200 bytes each; a text of limited length takes some for every character
_UNENFORCED = re.compile(r"Unimplemented keys: \[(.*)\]")


def compile_grammar(grammar: Grammar, tokenizer: GrammarTokenizer) -> LLMatcher:
    """A matcher at the beginning of ``grammar``, to be copied for each request.

    Raises ``RequestError`` that names the grammar's field, and the feature if it has one that cannot be enforced.
    """
    limits = LLParserLimits(max_lexer_states=_MAX_LEXER_STATES, verbose_errors=False)
    matcher = LLMatcher(tokenizer.vocabulary, _text_of(grammar, tokenizer.control), log_level=0, limits=limits)
    begun = time.thread_time()
    if not matcher.is_error():
        matcher.compute_bitmask()  # here, where nobody else waits for it
    if matcher.is_error():
        raise _refusal(grammar.field, matcher.get_error())
    if (seconds := time.thread_time() - begun) > MAX_FIRST_SECONDS:
        why = f"{grammar.field} is too complex: its first token alone takes {1e3 * seconds:.0f} ms"
        raise RequestError(why, param=grammar.field, code="grammar_too_complex")
    return matcher


class Grammars:
    """The kind of all matchers of grammars."""

    def __init__(self, threads: int, rows: int, words: int) -> None:
        """Fills up to ``rows`` masks of ``words`` at a time, by ``threads``."""
        self._executor = LLExecutor(threads)
        self._masks: UInt32 = np.zeros((rows, words), np.uint32)

    def advance(self, matchers: Sequence[Matcher], tokens: Sequence[int]) -> None:
        """See ``Kind``."""
        pairs = [(matcher.state, token) for matcher, token in zip(matchers, tokens, strict=True)]
        for matcher, taken in zip(matchers, self._executor.consume_token_par(pairs), strict=True):
            if not taken:
                matcher.error = _trouble(matcher)
            elif matcher.state.is_stopped():
                matcher.finished = True

    def masks(self, matchers: Sequence[Matcher]) -> UInt32:
        """See ``Kind``."""
        masks = self._masks[: len(matchers)]
        pairs = [(matcher.state, row) for row, matcher in enumerate(matchers)]
        self._executor.unsafe_compute_mask_ptr(pairs, masks.ctypes.data, masks.strides[0], len(masks))
        for matcher in matchers:
            if matcher.state.is_error():
                matcher.error = _trouble(matcher)
        return masks

    def nothing_left(self) -> TrimaranError:
        """See ``Kind``."""
        return ConstraintError("the grammar allows no token, though it says that the answer goes on")


def _trouble(matcher: Matcher) -> RequestError:
    """A grammar that was fine may meet a limit on what following it may cost, anywhere in an answer."""
    return RequestError(
        f"{matcher.field}: the answer cannot go on, {_first_line(matcher.state.get_error())}",
        param=matcher.field,
        code="grammar_too_complex",
    )


def _text_of(grammar: Grammar, control: dict[str, int]) -> str:
    """What llguidance compiles; raises ``RequestError``."""
    match grammar.kind:
        case "json_schema":
            schema = embedded_schema(_parsed(grammar), grammar.field)
            pattern = {"whitespace_pattern": grammar.whitespace} if grammar.whitespace else {}
            try:  # as text: it may have numbers that a dict must not
                return LLMatcher.grammar_from_json_schema(schema, overrides=cast(Any, {**COMPACT, **pattern}))
            except ValueError as error:
                raise _refusal(grammar.field, str(error)) from None
        case "regex":
            return LLMatcher.grammar_from_regex(grammar.text)
        case "choice":
            return LLMatcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, _choices(grammar))))
        case "lark":
            return LLMatcher.grammar_from_lark(grammar.text)
        case "ebnf":
            try:
                return LLMatcher.grammar_from_lark(any_to_lark(grammar.text))
            except Exception as error:  # of a converter that says everything by whatever it runs into
                raise RequestError(f"{grammar.field} is neither Lark nor GBNF: {error}", param=grammar.field) from None
        case "structural_tag":
            text = structural_tag(grammar.text, grammar.field, control.get)
            return LLMatcher.grammar_from_lark(text)
        case "constraint":
            raise AssertionError("not a grammar")


def _choices(grammar: Grammar) -> list[str]:
    choices = _parsed(grammar)
    if not (isinstance(choices, list) and choices and all(isinstance(choice, str) and choice for choice in choices)):
        raise RequestError(f"{grammar.field} must be a list of strings that are not empty", param=grammar.field)
    return choices


def _parsed(grammar: Grammar) -> Any:
    try:
        return json.loads(grammar.text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{grammar.field} is not valid JSON: {error}", param=grammar.field) from None


def _refusal(field: str, why: str) -> RequestError:
    if found := _UNENFORCED.search(why):
        return RequestError(
            f"{field} uses {found[1]}, which cannot be enforced", param=field, code="unsupported_grammar"
        )
    return RequestError(f"{field} cannot be enforced: {_first_line(why)}", param=field, code="unsupported_grammar")


def _first_line(text: str) -> str:
    """The first line and, where a parser points at a place, the reason after it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reasons = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return "; ".join([lines[0][:300] if lines else "no reason given", *reasons[:1]])
