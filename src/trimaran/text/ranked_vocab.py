"""Vocabularies of tiktoken: byte strings by rank. Source: ``tiktoken``'s ``_educational.py``."""

from collections.abc import Mapping, Sequence

import tokenizers
from tokenizers.models import BPE
from tokenizers.normalizers import NFC

from trimaran.base.errors import CheckpointError
from trimaran.text.byte_level import ALPHABET, to_byte_level
from trimaran.text.merges import merges_of
from trimaran.text.pretokenizers import Cutting


def ranked_tokenizer(
    tokens: Sequence[bytes], first_id: int, cutting: Cutting, added: Mapping[str, int]
) -> tokenizers.Tokenizer:
    """Encodes with ``tokens``, best rank first, whose ids count from ``first_id``; ``added`` tokens are found in text.

    Raises ``CheckpointError`` when a token is there twice or a byte not at all.
    """
    written = [to_byte_level(token) for token in tokens]
    vocab = {text: first_id + rank for rank, text in enumerate(written)}
    if len(vocab) != len(written):
        raise CheckpointError("the tokenizer's vocabulary holds a token twice")
    if missing := [byte for byte, char in enumerate(ALPHABET) if char not in vocab]:
        raise CheckpointError(f"the tokenizer's vocabulary has no token for the byte 0x{missing[0]:02x}")
    core = tokenizers.Tokenizer(BPE(vocab={**added, **vocab}, merges=merges_of(written, vocab), ignore_merges=True))
    if cutting.nfc:
        core.normalizer = NFC()
    core.pre_tokenizer = cutting.pre_tokenizer()
    core.add_tokens([tokenizers.AddedToken(text, normalized=False) for text in added])
    return core
