"""Tiny vocabularies with a family's control tokens, and the ids that a text must have in them."""

import re

from trimaran.text.byte_level import ALPHABET
from trimaran.text.gguf_vocab import read_gguf_vocab
from trimaran.text.tokenizer import Tokenizer

from .template_families import HARMLESS, Family


def tokenizer_of(family: Family) -> Tokenizer:
    """Bytes, then the control tokens, then the added ones; nothing merges."""
    tokens = [*ALPHABET, *family.control, *family.added]
    metadata = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": [1] * 256 + [3] * len(family.control) + [4] * len(family.added),
        "merges": [],
        **{f"{name}_token_id": tokens.index(text) for name, text in (("bos", family.bos), ("eos", family.eos)) if text},
    }
    return Tokenizer(read_gguf_vocab({f"tokenizer.ggml.{key}": value for key, value in metadata.items()}))


def ids_of(family: Family, text: str) -> list[int]:
    """Ids as the vendor's tokenizer gives them to a rendered prompt: every token in the text counts."""
    tokens = {token: 256 + at for at, token in enumerate((*family.control, *family.added))}
    pattern = "|".join(map(re.escape, sorted(tokens, key=len, reverse=True)))
    ids: list[int] = []
    for piece in re.split(f"({pattern})", text):
        ids += [tokens[piece]] if piece in tokens else piece.encode()
    return ids


def expected_ids(family: Family, rendered: dict[str, str], name: str, text: str) -> list[int]:
    """What a conversation must become; an attacker's words are bytes, in the place where harmless ones are."""
    if name != "injection":
        return ids_of(family, text)
    assert rendered["harmless"].replace(HARMLESS, family.typed()) == text
    # GLM's /nothink is meant to be typed
    typed = ids_of(Family("", ("/nothink",)), family.typed()) if "/nothink" in family.added else family.typed().encode()
    nothink = 256 + len(family.control) + family.added.index("/nothink") if "/nothink" in family.added else 0
    ids: list[int] = []
    for at, piece in enumerate(rendered["harmless"].split(HARMLESS)):
        ids += [nothink if i == 256 else i for i in typed] if at else []
        ids += ids_of(family, piece)
    return ids
