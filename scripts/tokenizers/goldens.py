"""Writes ``tests/data/tokenizers``: a thousand strings, tiny tokenizers of every kind, and the references' ids.

    python -m scripts.tokenizers.goldens LLAMA_IDS          the tiny ones, which ``make test`` compares
    python -m scripts.tokenizers.goldens LLAMA_IDS --real   and the real ones, which ``make tokenizers`` compares

``LLAMA_IDS`` is ``llama_ids.cpp``, compiled. Run by ``scripts/goldens_tokenizers.sh`` in an environment of its own,
which has nothing of Trimaran.
"""

import argparse
import gzip
import json
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path

from scripts.tokenizers.digests import UNLIKE, digest
from scripts.tokenizers.references import PATTERNS, llama_ids, read_ranks, reference, tiktoken
from scripts.tokenizers.sources import SOURCES, Reference, Source, fetch
from scripts.tokenizers.strings import PIECES, WORDS, adversarial_strings
from scripts.tokenizers.tiny import write_tiny
from scripts.tokenizers.tiny_gguf import byte_level_metadata, sentencepiece_metadata, through_llama_cpp

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data" / "tokenizers"
EXAMPLES = 5
TINY_JSON = ("byte-level", "llama2", "gemma", "metaspace-first")

BY_LLAMA_CPP = ("gpt-2", "smollm", "deepseek-v3", "glm4", "chatglm-bpe")  # its patterns are the vendors' there
BY_TIKTOKEN = {**{name: name for name in PATTERNS}, "minimax-m2": "gpt-4o", "glm5": "llama-bpe"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("llama_ids", type=Path, help="llama_ids.cpp, compiled")
    parser.add_argument("--real", action="store_true", help="also the real tokenizers (downloads about 500 MB)")
    options = parser.parse_args()
    strings = adversarial_strings()
    DATA.mkdir(parents=True, exist_ok=True)
    (DATA / "strings.json.gz").write_bytes(gzip.compress(json.dumps(strings).encode(), mtime=0))
    texts = [path.read_text("utf-8") for path in sorted((ROOT / "bench" / "texts").glob("*.txt"))]
    write_tiny(DATA / "tiny", [*texts, *PIECES, *WORDS, *WORDS])
    _write("tiny", strings, _tiny(strings, options.llama_ids))
    if options.real:
        _write("real", strings, {source.title: _real(source, strings, options.llama_ids) for source in SOURCES})


def _tiny(strings: Sequence[str], program: Path) -> dict[str, list[list[int]]]:
    kinds: list[tuple[str, str, Reference]] = [
        *((name, "tokenizer.json", "tokenizers") for name in TINY_JSON),
        ("sentencepiece", "tokenizer.model", "sentencepiece"),
        ("tekken-v7", "tekken.json", "mistral-common"),
        ("tekken-v13", "tekken.json", "mistral-common"),
        ("kimi", "tiktoken.model", "tiktoken"),
        ("qwen", "qwen.tiktoken", "tiktoken"),
    ]
    found = {}
    for name, file, library in kinds:
        config = DATA / "tiny" / name / "tokenizer_config.json"
        options = json.loads(config.read_text(encoding="utf-8")) if config.exists() else {}
        encode = reference(Source(name, "", "", file, library, config=options), DATA / "tiny" / name / file)
        found[name] = [encode(text) for text in strings]
    ranks = read_ranks(DATA / "tiny" / "kimi" / "tiktoken.model")
    pieces = sentencepiece_metadata(DATA / "tiny" / "sentencepiece" / "tokenizer.model")
    metadata = {"gpt2": byte_level_metadata(ranks), "llama": pieces}
    (DATA / "tiny" / "gguf.json").write_text(json.dumps(metadata), encoding="utf-8")
    for name in BY_LLAMA_CPP:
        found[f"gpt2 {name}"] = through_llama_cpp(metadata["gpt2"] | {"pre": name}, strings, program)
    for name, pattern in BY_TIKTOKEN.items():
        found[f"gpt2 {name}"] = list(map(tiktoken(ranks, pattern, {}), strings))
    found["llama"] = through_llama_cpp(pieces, strings, program)
    found["llama without blank"] = through_llama_cpp(pieces | {"add_space_prefix": False}, strings, program)
    return found


def _real(source: Source, strings: Sequence[str], program: Path) -> list[list[int] | None]:
    path = fetch(source, ROOT / ".tokenizers")
    if source.reference != "llama.cpp":
        encode = reference(source, path)
        return [encode(text) for text in strings]
    changed = [unicodedata.normalize("NFC", text) for text in strings] if source.changes == "NFC" else strings
    answers = zip(strings, llama_ids(program, path, changed), strict=True)
    return [None if any(mark in text for mark in source.unlike) else ids for text, ids in answers]


def _write(name: str, strings: Sequence[str], answers: Mapping[str, Sequence[Sequence[int] | None]]) -> None:
    """A line for each tokenizer: the digests of all strings, and the ids of some as examples."""
    file = {
        title: {
            "digests": "".join(UNLIKE if one is None else digest(one) for one in ids),
            "examples": _examples(strings, ids),
        }
        for title, ids in answers.items()
    }
    lines = ",\n".join(f"{json.dumps(title)}: {json.dumps(entry)}" for title, entry in file.items())
    (DATA / f"{name}.json").write_text("{\n" + lines + "\n}\n", encoding="utf-8")
    print(f"goldens: {len(file)} tokenizers, {len(strings)} strings each, in {DATA / name}.json")


def _examples(strings: Sequence[str], ids: Sequence[Sequence[int] | None]) -> list[tuple[str, Sequence[int]]]:
    return [(text, one) for text, one in zip(strings, ids, strict=True) if one is not None and len(one) == 9][:EXAMPLES]


if __name__ == "__main__":
    main()
