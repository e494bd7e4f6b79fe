"""The tiny vocabularies as GGUF metadata, and what llama.cpp makes of them; run by ``goldens.py``."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import sentencepiece
from scripts.tokenizers.references import llama_ids
from scripts.tokenizers.tiny import CONTROL, byte_level_text

Metadata = dict[str, Any]  # without the prefix of the keys


def byte_level_metadata(ranks: Mapping[bytes, int]) -> Metadata:
    """A tiktoken vocabulary, with all merges that may make a token, best first."""
    tokens = [byte_level_text(token) for token in ranks]
    known = set(tokens)
    merges = [
        f"{token[:cut]} {token[cut:]}"
        for token in tokens
        for cut in range(1, len(token))
        if token[:cut] in known and token[cut:] in known
    ]
    types = [1] * len(tokens) + [3] * len(CONTROL)
    return {"model": "gpt2", "tokens": [*tokens, *CONTROL], "token_type": types, "merges": merges}


def sentencepiece_metadata(path: Path) -> Metadata:
    """The pieces of a SentencePiece model; its user-defined ones are marked as unused."""
    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    ids = range(model.get_piece_size())
    unused = {model.piece_to_id(text) for text in ("<think>", "[REF]")}
    tests = {2: model.is_unknown, 3: model.is_control, 6: model.is_byte, 5: unused.__contains__}
    return {
        "model": "llama",
        "tokens": [model.id_to_piece(i) for i in ids],
        "scores": [model.get_score(i) for i in ids],
        "token_type": [next((kind for kind, test in tests.items() if test(i)), 1) for i in ids],
    }


def through_llama_cpp(metadata: Metadata, strings: Sequence[str], program: Path) -> list[list[int]]:
    """Writes a GGUF file that is all vocabulary, and asks llama.cpp for the ids of ``strings``."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocabulary.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        adders: dict[type, Any] = {list: writer.add_array, bool: writer.add_bool, str: writer.add_string}
        for key, value in metadata.items():
            adders[type(value)](f"tokenizer.ggml.{key}", value)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        return llama_ids(program, path, strings)
