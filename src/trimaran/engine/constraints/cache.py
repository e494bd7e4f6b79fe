"""Compiled grammars by their text, those used last, and one thread that compiles."""

import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from trimaran.base.grammar import Grammar
from trimaran.engine.constraints.tokens import TokenTable

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from trimaran.engine.constraints.tokenizer import GrammarTokenizer

_MAX_GRAMMARS = 256
_MAX_TEXT = 1 << 22  # characters of all grammars: what is compiled grows with them

Key = tuple[str, str, str, str]


class GrammarCache:
    """Compiles each text once. Reading the vocabulary waits for the first one, on the same thread."""

    def __init__(self, thread: ThreadPoolExecutor, table: Callable[[], TokenTable]) -> None:
        self._thread = thread
        self._table = table
        self._tokenizer: GrammarTokenizer | None = None
        self._known: OrderedDict[Key, Future[LLMatcher]] = OrderedDict()
        self._text = 0
        self.compiled = 0
        self.seconds = 0.0

    def ask(self, grammar: Grammar) -> "Future[LLMatcher]":
        """A matcher to be copied, now or soon, or the ``TrimaranError`` that compiling gave."""
        key = (grammar.kind, grammar.text, grammar.whitespace, grammar.field)  # errors name the field
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._thread.submit(self._compile, grammar)
            self._text += len(grammar.text)
        self._known.move_to_end(key)
        while len(self._known) > 1 and (len(self._known) > _MAX_GRAMMARS or self._text > _MAX_TEXT):
            (_, text, _, _), _ = self._known.popitem(last=False)
            self._text -= len(text)
        return found

    def tokenizer(self) -> "GrammarTokenizer":
        """What grammars are compiled for; read by the thread that compiles the first."""
        if self._tokenizer is None:
            from trimaran.engine.constraints.tokenizer import grammar_tokenizer

            self._tokenizer = grammar_tokenizer(self._table())
        return self._tokenizer

    def _compile(self, grammar: Grammar) -> "LLMatcher":
        from trimaran.engine.constraints.grammars import compile_grammar

        begun = time.perf_counter()
        matcher = compile_grammar(grammar, self.tokenizer())
        self.compiled += 1
        self.seconds += time.perf_counter() - begun
        return matcher
