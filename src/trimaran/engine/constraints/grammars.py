"""Grammars, compiled and followed by llguidance (https://github.com/guidance-ai/llguidance)."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, cast

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLParserLimits
from llguidance.gbnf_to_lark import any_to_lark

from trimaran.base.errors import ConstraintError, RequestError, TrimaranError
from trimaran.base.grammar import Grammar
from trimaran.engine.constraints.matcher import Matcher, UInt32
from trimaran.engine.constraints.structural_tag import structural_tag
from trimaran.engine.constraints.tokenizer import GrammarTokenizer
from trimaran.text import grammar_errors
from trimaran.text.json_schema import COMPACT, embedded_schema

MAX_FIRST_SECONDS = 0.1  # for the first mask; later ones are bounded by llguidance's own limits
_MAX_LEXER_STATES = 100_000  # about 200 bytes each; a text of limited length takes some for every character


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
        raise _refusal(grammar, matcher.get_error())
    if (seconds := time.thread_time() - begun) > MAX_FIRST_SECONDS:
        why = f"{grammar.field} is too complex: its first token alone takes {1e3 * seconds:.0f} ms"
        raise RequestError(why, param=grammar.field, code="grammar_too_complex")
    return matcher


@dataclass(slots=True)
class _Place:
    """Where an answer stands in a grammar."""

    compiled: LLMatcher  # the beginning, of all requests with this grammar
    followed: LLMatcher
    taken: list[int]  # the tokens between the two


class Grammars:
    """The kind of all matchers of grammars."""

    def __init__(self, threads: int, rows: int, tokenizer: GrammarTokenizer, words: int) -> None:
        """Fills up to ``rows`` masks of ``words`` at a time, by ``threads``."""
        self._executor = LLExecutor(threads)
        self._tokenizer = tokenizer
        self._masks: UInt32 = np.zeros((rows, words), np.uint32)

    def start(self, compiled: LLMatcher, field: str) -> Matcher:
        """A matcher at the beginning."""
        return Matcher(self, _Place(compiled, compiled.deep_copy(), []), field)

    def advance(self, matchers: Sequence[Matcher], tokens: Sequence[int]) -> None:
        """See ``Kind``."""
        pairs = [(matcher.state.followed, token) for matcher, token in zip(matchers, tokens, strict=True)]
        taken = self._executor.consume_token_par(pairs)
        for matcher, (followed, token), went in zip(matchers, pairs, taken, strict=True):
            matcher.state.taken.append(token)
            if not went:
                matcher.error = _trouble(matcher)
            elif followed.is_stopped():
                matcher.finished = True

    def masks(self, matchers: Sequence[Matcher], drafts: Sequence[tuple[int, ...]]) -> UInt32:
        """See ``Kind``."""
        plain: list[tuple[LLMatcher, int]] = []
        drafted: list[tuple[LLMatcher, int, list[int]]] = []
        rows = 0
        for matcher, draft in zip(matchers, drafts, strict=True):
            if draft:
                drafted.append((matcher.state.followed, rows, list(draft)))
            else:
                plain.append((matcher.state.followed, rows))
            rows += 1 + len(draft)
        masks = self._masks[:rows]
        where = masks.ctypes.data, masks.strides[0], rows
        if plain:
            self._executor.unsafe_compute_mask_ptr(plain, *where)
        if drafted:
            self._executor.unsafe_compute_mask_ptr_with_draft_token(drafted, *where)
        row = 0
        for matcher, draft in zip(matchers, drafts, strict=True):
            if draft and matcher.state.followed.is_error():
                self._retreat(matcher)
                masks[row : row + 1 + len(draft)] = 0
                self._executor.unsafe_compute_mask_ptr([(matcher.state.followed, row)], *where)
            if matcher.state.followed.is_error():
                matcher.error = _trouble(matcher)
            row += 1 + len(draft)
        return masks

    def forced(self, matcher: Matcher, most: int) -> tuple[int, ...]:
        """See ``Kind``."""
        followed: LLMatcher = matcher.state.followed
        text, vocabulary = followed.compute_ff_bytes(), self._tokenizer.vocabulary
        if not text:
            return ()
        tokens = followed.compute_ff_tokens()
        rest = text[len(vocabulary.decode_bytes(tokens)) :]
        return self._cut((tokens + vocabulary.greedy_tokenize(rest.decode("utf-8", "ignore")))[:most])

    def accepted(self, matcher: Matcher, draft: tuple[int, ...]) -> tuple[int, ...]:
        """See ``Kind``."""
        followed, cut = matcher.state.followed, self._cut(draft)
        accepted = cut[: followed.validate_tokens(list(cut))]
        if followed.is_error():
            self._retreat(matcher)
            return ()
        return accepted

    def _cut(self, draft: Sequence[int]) -> tuple[int, ...]:
        """Up to the first token that is no text: llguidance does not always come back from an end of text."""
        never = self._tokenizer.not_text
        return tuple(takewhile(lambda token: token not in never, draft))

    def _retreat(self, matcher: Matcher) -> None:
        """A draft has met a limit, or the grammar cannot be followed backwards: as if there had been none, and there
        will be none."""
        place: _Place = matcher.state
        place.followed = place.compiled.deep_copy()
        place.followed.consume_tokens(place.taken)
        matcher.drafts = False

    def nothing_left(self) -> TrimaranError:
        """See ``Kind``."""
        return ConstraintError("the grammar allows no token, though it says that the answer goes on")


def _trouble(matcher: Matcher) -> RequestError:
    """A grammar that was fine may meet a limit on what following it may cost, anywhere in an answer."""
    return RequestError(
        f"{matcher.field}: the answer cannot go on: {grammar_errors.end(matcher.state.followed.get_error())}",
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
                raise _refusal(grammar, str(error)) from None
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


def _refusal(grammar: Grammar, said: str) -> RequestError:
    why = grammar_errors.refusal(said, places=grammar.kind in ("lark", "ebnf"))
    return RequestError(f"{grammar.field} {why}", param=grammar.field, code="unsupported_grammar")
