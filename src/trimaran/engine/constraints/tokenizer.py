"""The vocabulary as llguidance has it."""

from dataclasses import dataclass

from llguidance import LLTokenizer, TokenizerWrapper

from trimaran.engine.constraints.tokens import TokenTable

_LONG = 1024  # characters
_CUT = 32  # tokens that might have been others, had the text gone on


class _Adapter(TokenizerWrapper):
    """What llguidance asks of a tokenizer. It calls it for text that a grammar forces, and trusts the answer."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, table: TokenTable) -> None:  # the base class would guess
        self._table = table
        self.tokens = table.tokens
        self.eos_token_id = min(table.eos_ids)
        self.special_token_ids = sorted(table.control_ids | table.eos_ids)
        self.by_bytes: LLTokenizer | None = None

    def __call__(self, s: str) -> list[int]:
        """Ids whose bytes are those of ``s``, the tokenizer's own if it has such: some put a blank before a text.

        Of a long text the ids of its beginning: a step needs the first, and asks again in the next.
        """
        if len(s) > _LONG:
            return self(s[:_LONG])[:-_CUT]
        wanted, table = s.encode(), self._table.tokens
        ids = self._table.encode(s)
        for found in (ids, ids[1:]):
            if all(token < len(table) for token in found) and b"".join(table[token] for token in found) == wanted:
                return found
        assert self.by_bytes is not None
        return self.by_bytes.greedy_tokenize(s)


@dataclass(frozen=True)
class GrammarTokenizer:
    """What compiling needs: the vocabulary, and its control tokens by their text."""

    vocabulary: LLTokenizer
    control: dict[str, int]
    not_text: frozenset[int]  # these, and what ends a text


def grammar_tokenizer(table: TokenTable) -> GrammarTokenizer:
    """``table`` as llguidance has it; takes about a second for 250,000 tokens."""
    adapter = _Adapter(table)
    adapter.by_bytes = LLTokenizer(adapter, eos_token=sorted(table.eos_ids))
    control = {table.tokens[token].decode("utf-8", "replace"): token for token in sorted(table.control_ids)}
    return GrammarTokenizer(adapter.by_bytes, control, table.control_ids | table.eos_ids)
