"""Makes a tiny tokenizer of every kind, with reference libraries alone; run by ``goldens.py``.

All byte-level ones share one vocabulary, all SentencePiece ones another: what differs is how the files put them.
"""

import json
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sentencepiece
from scripts.tokenizers.references import PATTERNS
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SIZE = 700
CONTROL = ["<s>", "</s>", "<|im_end|>", "[INST]"]
ADDED = ["<think>", "<｜User｜>", "▁▁", "\n\n"]  # not special, though the second steers the model
BLANK = "▁"


def write_tiny(folder: Path, texts: Sequence[str]) -> None:
    """Writes a folder for each tokenizer, trained on ``texts``."""
    words = _byte_level(texts)
    _save(folder / "byte-level", words, eos_token="</s>", bos_token="<s>", add_bos_token=True)
    ranks = _ranks(words)
    lines = b"".join(b"%s %d\n" % (b64encode(token), rank) for rank, token in enumerate(ranks))
    named = {str(len(ranks) + i): {"content": text, "special": True} for i, text in enumerate(CONTROL)}
    named[str(len(ranks) + len(CONTROL))] = {"content": "<think>", "special": False}
    for name, kind, file in (
        ("kimi", "TikTokenTokenizer", "tiktoken.model"),
        ("qwen", "QWenTokenizer", "qwen.tiktoken"),
    ):
        _config(folder / name, tokenizer_class=kind, added_tokens_decoder=named, bos_token="<s>", eos_token="</s>")
        (folder / name / file).write_bytes(lines)
    _tekken(folder / "tekken-v7", ranks, "v7", [])
    _tekken(folder / "tekken-v13", ranks, "v13", ["<unk>", *CONTROL, "[ARGS]"])

    pieces = _sentencepiece(folder / "sentencepiece", texts)
    prefix, blanks = normalizers.Prepend(BLANK), normalizers.Replace(" ", BLANK)
    undo = [decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse()]
    llama = _pieces(pieces, normalizers.Sequence([prefix, blanks]), [*undo, decoders.Strip(" ", 1, 0)])
    _save(folder / "llama2", llama, eos_token="</s>", bos_token="<s>", add_bos_token=True)
    gemma = _pieces(pieces, blanks, undo)
    gemma.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    gemma.add_tokens([AddedToken(text, normalized=False) for text in ADDED])
    _save(folder / "gemma", gemma, eos_token="</s>", bos_token="<s>", add_bos_token=True)
    first = _pieces(pieces, None, [*undo, decoders.Strip(" ", 1, 0)])
    first.pre_tokenizer = pre_tokenizers.Metaspace(BLANK, prepend_scheme="first", split=False)
    _save(folder / "metaspace-first", first, eos_token="</s>", bos_token="<s>", add_bos_token=True)


def _byte_level(texts: Sequence[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PATTERNS["kimi-k2"]), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=SIZE, initial_alphabet=sorted(alphabet), show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in CONTROL])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in ADDED])
    tokenizer.post_processor = processors.TemplateProcessing(
        "<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer


def _ranks(tokenizer: Tokenizer) -> list[bytes]:
    """The byte strings of a byte-level BPE: single bytes, then merged ones in the order of training."""
    file = json.loads(tokenizer.to_str())
    merged = ["".join(pair) for pair in file["model"]["merges"]]
    to_byte = {char: byte for byte, char in enumerate(_alphabet())}
    return [*(bytes([byte]) for byte in range(256)), *(bytes(to_byte[char] for char in text) for text in merged)]


def byte_level_text(token: bytes) -> str:
    """A byte string in GPT-2's alphabet."""
    alphabet = _alphabet()
    return "".join(alphabet[byte] for byte in token)


def _alphabet() -> str:
    """GPT-2's: bytes that Latin-1 can print stand for themselves, the others are U+0100 and up."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return "".join(chr(byte) if byte in printable else chr(next(others)) for byte in range(256))


def _tekken(folder: Path, ranks: Sequence[bytes], version: str, special: Sequence[str]) -> None:
    config = {
        "pattern": PATTERNS["tekken"],
        "num_vocab_tokens": len(ranks),
        "default_vocab_size": len(ranks) + 20,  # 10 tokens at the end are left out
        "default_num_special_tokens": 30,
        "version": version,
    }
    file: dict[str, Any] = {
        "config": config,
        "vocab": [
            {"rank": rank, "token_bytes": b64encode(token).decode(), "token_str": None}
            for rank, token in enumerate(ranks)
        ],
    }
    if special:
        file["special_tokens"] = [{"rank": i, "token_str": s, "is_control": True} for i, s in enumerate(special)]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tekken.json").write_text(json.dumps(file, separators=(",", ":")), encoding="utf-8")


def _sentencepiece(folder: Path, texts: Sequence[str]) -> sentencepiece.SentencePieceProcessor:
    folder.mkdir(parents=True, exist_ok=True)
    corpus = folder / "corpus.txt"
    corpus.write_text("\n".join(texts).replace("\0", ""), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus),
        model_prefix=str(folder / "tokenizer"),
        model_type="bpe",
        vocab_size=SIZE + 256,
        byte_fallback=True,
        character_coverage=0.99,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        control_symbols=["<|im_end|>", "[INST]"],
        user_defined_symbols=["<think>", "[REF]"],
        num_threads=1,
        minloglevel=2,
    )
    corpus.unlink()
    (folder / "tokenizer.vocab").unlink()
    return sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))


def _pieces(model: Any, normalizer: Any, undo: Sequence[Any]) -> Tokenizer:
    """The pieces of a SentencePiece model as BPE with merges, without its user-defined pieces."""
    texts = [model.id_to_piece(i) for i in range(model.get_piece_size())]
    texts = ["<unused_a>" if text == "<think>" else "<unused_b>" if text == "[REF]" else text for text in texts]
    known = {
        text: i for i, text in enumerate(texts) if not (model.is_control(i) or model.is_byte(i) or text[:1] == "<")
    }
    merges = [
        (text[:cut], text[cut:])
        for text in sorted(known, key=lambda text: -model.get_score(known[text]))
        for cut in range(1, len(text))
        if text[:cut] in known and text[cut:] in known
    ]
    vocab = {text: i for i, text in enumerate(texts)}
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.Sequence(list(undo))
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in ("<unk>", *CONTROL)])
    return tokenizer


def _save(folder: Path, tokenizer: Tokenizer, **options: Any) -> None:
    _config(folder, **options)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)


def _config(folder: Path, **options: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer_config.json").write_text(json.dumps(options, ensure_ascii=False), encoding="utf-8")
