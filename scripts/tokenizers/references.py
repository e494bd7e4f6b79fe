"""The reference libraries, each with the ids that it gives a text whose control tokens are text. Imported inside."""

import json
import logging
import struct
import subprocess
import unicodedata
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from scripts.tokenizers.sources import Source

Encode = Callable[[str], list[int]]
MARKS = ("<|", "|>", "｜", "]~", "~[")  # tokens with these steer the model, whatever their file says of them
PATTERNS = {  # as their vendors write them
    "llama-bpe": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen35": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    "tekken": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "gpt-4o": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "kimi-k2": r"[\p{Han}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
OF_CLASS = {"QWenTokenizer": "qwen2", "TikTokenTokenizer": "kimi-k2"}


def reference(source: Source, path: Path) -> Encode:
    """The reference's encoder for ``source``, whose file is at ``path``; not for llama.cpp, see ``llama_ids``."""
    makers = {"tokenizers": _tokenizers, "sentencepiece": _sentencepiece, "mistral-common": _tekken}
    if source.reference == "tiktoken":
        entries = source.config.get("added_tokens_decoder", {}).items()
        added = {entry["content"]: int(token_id) for token_id, entry in entries if not entry["special"]}
        return tiktoken(read_ranks(path), OF_CLASS[source.config["tokenizer_class"]], added)
    return makers[source.reference](path)


def llama_ids(program: Path, path: Path, texts: Sequence[str]) -> list[list[int]]:
    """What llama.cpp gives ``texts``; ``program`` is ``llama_ids.cpp``, compiled."""
    written = b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in texts)
    data = subprocess.run([program, path], input=written, stdout=subprocess.PIPE, check=True).stdout
    answers: list[list[int]] = []
    at = 0
    for _ in texts:
        (count,) = struct.unpack_from("<I", data, at)
        answers.append(list(struct.unpack_from(f"<{count}i", data, at + 4)))
        at += 4 + 4 * count
    return answers


def _tokenizers(path: Path) -> Encode:
    from tokenizers import Tokenizer

    file = json.loads(path.read_text(encoding="utf-8"))
    for token in file["added_tokens"]:
        token["special"] = token["special"] or any(mark in token["content"] for mark in MARKS)
    tokenizer = Tokenizer.from_str(json.dumps(file))
    tokenizer.encode_special_tokens = True
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def _sentencepiece(path: Path) -> Encode:
    from sentencepiece import SentencePieceProcessor

    encode: Encode = SentencePieceProcessor(model_file=str(path)).encode
    return encode


def _tekken(path: Path) -> Encode:
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    logging.getLogger("mistral_common").setLevel(logging.ERROR)
    tekken = Tekkenizer.from_file(path)
    return lambda text: tekken.encode(text, bos=False, eos=False)


def read_ranks(path: Path) -> dict[bytes, int]:
    """The contents of a tiktoken file."""
    return {b64decode(token): int(rank) for token, rank in (line.split() for line in path.read_bytes().splitlines())}


def tiktoken(ranks: Mapping[bytes, int], pattern: str, added: Mapping[str, int]) -> Encode:
    """tiktoken's encoder for ranks, the name of a pattern (``qwen…`` normalise), and tokens to find in text."""
    from tiktoken import Encoding

    encoding = Encoding("goldens", pat_str=PATTERNS[pattern], mergeable_ranks=dict(ranks), special_tokens=dict(added))
    form: Callable[[str], str] = (
        (lambda text: unicodedata.normalize("NFC", text)) if pattern.startswith("qwen") else str
    )
    return lambda text: encoding.encode(form(text), allowed_special=set(added), disallowed_special=())
