"""Reads the vocabulary inside a GGUF file. Source: the section "Tokenizer" of ``docs/gguf.md`` in ggml.

Token types are those of SentencePiece, for every kind of vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import tokenizers
from tokenizers.models import BPE
from tokenizers.normalizers import NFC

from trimaran.base.errors import CheckpointError, UnsupportedError
from trimaran.text.byte_level import byte_level_table
from trimaran.text.byte_table import ByteTable
from trimaran.text.control import ControlToken, ControlTokens, is_marker
from trimaran.text.merges import merges_of
from trimaran.text.pretokenizers import find_cutting
from trimaran.text.sentencepiece import CONTROL, UNKNOWN, UNUSED, USER_DEFINED, Pieces
from trimaran.text.vocabulary import Vocabulary

PREFIX = "tokenizer.ggml."
NAMED = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
END_KEYS = ("eos", "eot", "eom")  # end of text, of turn, of message
END_TEXTS = frozenset({"<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<end_of_turn>", "[EOT]"})  # where a key is missing


def read_gguf_vocab(metadata: Mapping[str, Any]) -> Vocabulary:
    """Builds the vocabulary from GGUF metadata: byte-level BPE (``gpt2``) or SentencePiece's BPE (``llama``).

    Raises ``UnsupportedError`` on other kinds, ``CheckpointError`` when something is missing or wrong.
    """
    kind = metadata.get(PREFIX + "model")
    if kind == "gpt2":
        return _byte_level(_Tokens.read(metadata))
    if kind == "llama":
        return _sentencepiece(_Tokens.read(metadata))
    raise UnsupportedError(
        f"the file's vocabulary is of kind {kind!r} (tokenizer.ggml.model);"
        " this version reads byte-level BPE ('gpt2') and SentencePiece's BPE ('llama')"
    )


@dataclass(frozen=True)
class _Tokens:
    """What all kinds have. Markers that the file calls user-defined have become control tokens."""

    metadata: Mapping[str, Any]
    texts: list[str]
    types: list[int]
    markers: frozenset[int]

    @classmethod
    def read(cls, metadata: Mapping[str, Any]) -> Self:
        texts = _list(metadata, "tokens", str)
        types = _list(metadata, "token_type", int)
        if len(types) != len(texts):
            raise CheckpointError(f"the vocabulary has {len(texts)} tokens, but {len(types)} token types")
        markers = frozenset(i for i, found in enumerate(types) if found == USER_DEFINED and is_marker(texts[i]))
        types = [CONTROL if token_id in markers else found for token_id, found in enumerate(types)]
        return cls(metadata, texts, types, markers)

    def of_type(self, *types: int) -> list[int]:
        return [token_id for token_id, found in enumerate(self.types) if found in types]

    def vocabulary(
        self, core: tokenizers.Tokenizer, table: ByteTable, *, add_bos: bool, prefix: str = ""
    ) -> Vocabulary:
        ids = {name: _token_id(self.metadata, name, len(self.texts)) for name in {*NAMED.values(), *END_KEYS}}
        ends = {end for key in END_KEYS if (end := ids[key]) is not None}
        control = self.of_type(CONTROL, UNKNOWN)
        return Vocabulary(
            core=core,
            table=table,
            control=ControlTokens(ControlToken(self.texts[token_id], token_id) for token_id in control),
            control_ids=frozenset(control) - self.markers,
            bos_id=ids["bos"],
            add_bos=bool(self.metadata.get(PREFIX + "add_bos_token", add_bos)),
            eos_ids=frozenset(ends.union(token_id for token_id in control if self.texts[token_id] in END_TEXTS)),
            named={name: self.texts[which] for name, key in NAMED.items() if (which := ids[key]) is not None},
            added=tuple(ControlToken(self.texts[token_id], token_id) for token_id in self.of_type(USER_DEFINED)),
            prefix=prefix,
            drops_blank=bool(prefix),
        )


def _byte_level(tokens: _Tokens) -> Vocabulary:
    cutting = find_cutting(_required(tokens.metadata, "pre", str))
    # Control tokens stay out, so that nothing in a text can lead to one; added tokens must be in to keep their ids.
    unreachable = frozenset(tokens.of_type(CONTROL, UNKNOWN, UNUSED))
    added = tokens.of_type(USER_DEFINED)
    vocab = {text: token_id for token_id, text in enumerate(tokens.texts) if token_id not in unreachable}
    if cutting.ranked:
        merges = merges_of(vocab, vocab)
    else:
        written = _list(tokens.metadata, "merges", str)
        merges = [(left, right) for left, _, right in (merge.partition(" ") for merge in written)]
    try:
        core = tokenizers.Tokenizer(BPE(vocab=vocab, merges=merges, ignore_merges=cutting.whole_words))
    except BaseException as error:  # what the library raises is not typed, and its panics are no exceptions
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise CheckpointError(f"the file's vocabulary and merges do not fit together: {error}") from error
        raise
    if cutting.nfc:
        core.normalizer = NFC()
    core.pre_tokenizer = cutting.pre_tokenizer()
    core.add_tokens([tokenizers.AddedToken(tokens.texts[token_id], normalized=False) for token_id in added])
    return tokens.vocabulary(core, byte_level_table(tokens.texts, unreachable.union(added)), add_bos=cutting.add_bos)


def _sentencepiece(tokens: _Tokens) -> Vocabulary:
    pieces = Pieces(tokens.texts, _list(tokens.metadata, "scores", float), tokens.types)
    prefix = " " if tokens.metadata.get(PREFIX + "add_space_prefix", True) else ""
    return tokens.vocabulary(pieces.tokenizer(), pieces.table(), add_bos=True, prefix=prefix)


def _required(metadata: Mapping[str, Any], key: str, kind: type) -> Any:
    value = metadata.get(PREFIX + key)
    if not isinstance(value, kind):
        raise CheckpointError(f"the file's metadata has no usable {PREFIX}{key}; convert the model again")
    return value


def _list(metadata: Mapping[str, Any], key: str, kind: type) -> list[Any]:
    values: list[Any] = _required(metadata, key, list)
    if values and not isinstance(values[0], kind):  # GGUF arrays have one type
        raise CheckpointError(f"{PREFIX}{key} should be a list of {kind.__name__}")
    return values


def _token_id(metadata: Mapping[str, Any], name: str, count: int) -> int | None:
    key = f"{PREFIX}{name}_token_id"
    value = metadata.get(key)
    if value is not None and not (isinstance(value, int) and 0 <= value < count):
        raise CheckpointError(f"{key} is {value!r}, but the vocabulary has {count} tokens")
    return value
