"""Holds real tokenizers to the ids that reference libraries give a thousand strings each.

    python -m scripts.tokenizers                     all; downloads about 500 MB into .tokenizers/ the first time
    python -m scripts.tokenizers qwen3 "gemma3 GGUF"   some
    python -m scripts.tokenizers --speed             also MB/s beside the reference, where that is installed

Text must also come back from its ids, whole and token by token. Exit status 1 when anything differs.
"""

import argparse
import gzip
import json
import sys
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path

from scripts.tokenizers.digests import differing
from scripts.tokenizers.references import reference
from scripts.tokenizers.sources import SOURCES, Source, fetch

from trimaran.base.messages import Token
from trimaran.checkpoint import open_checkpoint
from trimaran.text.gguf_vocab import read_gguf_vocab
from trimaran.text.stream import TextStream
from trimaran.text.tokenizer import Tokenizer
from trimaran.text.vocab_files import read_vocab

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data" / "tokenizers"
HEADER = f"{'tokenizer':20} {'vocabulary':>10} {'ids differ':>10} {'text differs':>12} {'opens in':>8}"
SPEEDS = f"   {'encode':>6} {'decode':>6}   {'theirs':>6} {'ratio':>5}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("titles", nargs="*", metavar="TOKENIZER", help=", ".join(source.title for source in SOURCES))
    parser.add_argument("--speed", action="store_true", help="measure MB/s too")
    options = parser.parse_args()
    if unknown := set(options.titles) - {source.title for source in SOURCES}:
        parser.error(
            f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(source.title for source in SOURCES)}"
        )
    strings = json.loads(gzip.decompress((DATA / "strings.json.gz").read_bytes()))
    goldens = json.loads((DATA / "real.json").read_text(encoding="utf-8"))
    print(HEADER + (SPEEDS if options.speed else ""))
    wrong = 0
    for source in SOURCES:
        if not options.titles or source.title in options.titles:
            path = fetch(source, ROOT / ".tokenizers")
            began = time.perf_counter()
            tokenizer = _open(path)
            opened = time.perf_counter() - began
            ids = differing(list(map(tokenizer.encode, strings)), goldens[source.title]["digests"])
            lost = _lost(tokenizer)
            texts = [text for text in strings if not _comes_back(tokenizer, _kept(source, text, lost), text)]
            line = f"{source.title:20} {tokenizer.vocab_size:10,} {len(ids):10} {len(texts):12} {opened:6.2f} s"
            print(line + (_speeds(source, path, tokenizer) if options.speed else ""), flush=True)
            wrong += len(ids) + len(texts)
            for text in [strings[at] for at in ids[:3]] + texts[:3]:
                print(f"    {text!a:.150}")
    return 1 if wrong else 0


def _open(path: Path) -> Tokenizer:
    if path.suffix == ".gguf":
        with open_checkpoint(path) as checkpoint:
            return Tokenizer(read_gguf_vocab(checkpoint.metadata))
    return Tokenizer(read_vocab(path.parent, {}))


def _lost(tokenizer: Tokenizer) -> bytes:
    """The bytes that the vocabulary has no token for (SmolLM2's lacks 21)."""
    tokens = {tokenizer.token_bytes(token_id) for token_id in range(tokenizer.vocab_size)}
    return bytes(byte for byte in range(256) if bytes([byte]) not in tokens)


def _kept(source: Source, text: str, lost: bytes) -> bytes:
    """What encoding keeps of a text."""
    form = unicodedata.normalize("NFC", text) if source.changes == "NFC" else text
    return (form.replace("▁", " ") if source.changes == "blanks" else form).encode().translate(None, lost)


def _comes_back(tokenizer: Tokenizer, kept: bytes, text: str) -> bool:
    ids = tokenizer.encode(text)
    stream = TextStream(tokenizer, message=True)
    streamed = "".join(stream.feed([Token(token_id)]).text for token_id in ids) + stream.finish().text
    return tokenizer.decode(ids) == streamed == kept.decode("utf-8", "replace")


def _speeds(source: Source, path: Path, tokenizer: Tokenizer) -> str:
    """MB/s over this repository's own text and code, a file at a time."""
    texts = [file.read_text("utf-8") for part in ("docs/*.md", "src/**/*.py") for file in sorted(ROOT.glob(part))]
    size = sum(len(text.encode()) for text in texts) / 1e6
    ids = [tokenizer.encode(text) for text in texts]
    ours = size / _seconds(lambda: [tokenizer.encode(text) for text in texts])
    back = size / _seconds(lambda: [tokenizer.decode(one) for one in ids])
    line = f"   {ours:6.2f} {back:6.2f}"
    if source.reference == "llama.cpp":
        return line
    try:
        encode = reference(source, path)
    except ImportError:
        return line
    theirs = size / _seconds(lambda: [encode(text) for text in texts])
    return line + f"   {theirs:6.2f} {ours / theirs:5.2f}"


def _seconds(work: Callable[[], object]) -> float:
    """The least of three times that ``work`` takes."""
    took = []
    for _ in range(3):
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    return min(took)


if __name__ == "__main__":
    sys.exit(main())
