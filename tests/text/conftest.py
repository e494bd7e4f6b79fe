"""A vocabulary small enough to read: bytes, a few merges, control tokens."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from trimaran.checkpoint import open_checkpoint
from trimaran.text.byte_level import ALPHABET
from trimaran.text.gguf_vocab import read_gguf_vocab
from trimaran.text.tokenizer import Tokenizer, open_tokenizer
from trimaran.text.vocab_files import read_vocab

MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld", "i m", "e n", "en d", "Ã ©"]
CONTROL = ["<|start|>", "<|im_end|>", "<|im_end|>>", "<bos>", "<eot>", "[unk]"]
ADDED = ["<think>", "</think>"]


def small_vocab(**changes: Any) -> dict[str, Any]:
    """GGUF metadata; ids: 0-255 bytes, then merges, control tokens, added tokens, one unused. None removes a key."""
    merged = [merge.replace(" ", "") for merge in MERGES]
    tokens = [*ALPHABET, *merged, *CONTROL, *ADDED, "[PAD0]"]
    types = [1] * (256 + len(merged)) + [3] * (len(CONTROL) - 1) + [2] + [4] * len(ADDED) + [5]
    metadata = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": types,
        "merges": MERGES,
        "bos_token_id": tokens.index("<bos>"),
        "eos_token_id": tokens.index("<|im_end|>"),
        "eot_token_id": tokens.index("<eot>"),
        "unknown_token_id": tokens.index("[unk]"),
    } | changes
    return {f"tokenizer.ggml.{key}": value for key, value in metadata.items() if value is not None}


@dataclass
class FakeCheckpoint:
    """As much of a checkpoint as tokenizers and templates look at."""

    kind: str = "gguf"
    metadata: dict[str, Any] = field(default_factory=dict)
    directory: Path = Path()

    def read(self, path: Path) -> bytes:
        return path.read_bytes()


@pytest.fixture
def vocab() -> Callable[..., dict[str, Any]]:
    return small_vocab


@pytest.fixture
def fake_checkpoint() -> type[FakeCheckpoint]:
    return FakeCheckpoint


@pytest.fixture(scope="session")
def small() -> Tokenizer:
    return Tokenizer(read_gguf_vocab(small_vocab()))


@pytest.fixture(scope="session")
def blank_first() -> Tokenizer:
    """A SentencePiece tokenizer, which puts a blank before every text."""
    folder = Path(__file__).parents[1] / "data" / "tokenizers" / "tiny" / "sentencepiece"
    return Tokenizer(read_vocab(folder, {}))


@pytest.fixture(scope="session")
def real(smollm2: Path) -> Tokenizer:
    """SmolLM2's tokenizer."""
    with open_checkpoint(smollm2) as checkpoint:
        return open_tokenizer(checkpoint)
