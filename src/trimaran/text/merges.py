"""Recovers merges for vocabularies that only rank their tokens.

tiktoken and SentencePiece join, of all neighbours that make a token together, the two whose token ranks first. Merge
rules say the same when they list every way to put a token together, in the order of the tokens made.
"""

from collections.abc import Container, Iterable


def merges_of(ranked: Iterable[str], known: Container[str]) -> list[tuple[str, str]]:
    """All merges that make the tokens of ``ranked``, best first, out of two tokens of ``known``."""
    return [
        (token[:cut], token[cut:])
        for token in ranked
        for cut in range(1, len(token))
        if token[:cut] in known and token[cut:] in known
    ]
