"""Reads the vocabulary inside a GGUF file. Source: the section "Tokenizer" of ``docs/gguf.md`` in ggml."""

from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers.models import BPE
from tokenizers.normalizers import NFC

from trimaran.base.errors import CheckpointError, UnsupportedError
from trimaran.text.byte_level import ByteTable
from trimaran.text.control import ControlToken, ControlTokens
from trimaran.text.pretokenizers import find_cutting
from trimaran.text.vocabulary import Vocabulary

PREFIX = "tokenizer.ggml."
UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 2, 3, 4, 5  # token types; 1 is normal, 6 a single byte
NAMED = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
END_KEYS = ("eos", "eot", "eom")  # end of text, of turn, of message


def read_gguf_vocab(metadata: Mapping[str, Any]) -> Vocabulary:
    """Builds the vocabulary from GGUF metadata.

    Raises ``UnsupportedError`` when it is not byte-level BPE, ``CheckpointError`` when something is missing or wrong.
    """
    kind = metadata.get(PREFIX + "model")
    if kind != "gpt2":
        raise UnsupportedError(
            f"the file's vocabulary is of kind {kind!r} (tokenizer.ggml.model);"
            " this version reads byte-level BPE ('gpt2'), not SentencePiece or others"
        )
    tokens = _list(metadata, "tokens", str)
    types = _list(metadata, "token_type", int)
    if len(types) != len(tokens):
        raise CheckpointError(f"the vocabulary has {len(tokens)} tokens, but {len(types)} token types")
    cutting = find_cutting(_required(metadata, "pre", str))
    of_type: dict[int, list[int]] = {found: [] for found in set(types)}
    for token_id, found in enumerate(types):
        of_type[found].append(token_id)
    control_ids = frozenset(of_type.get(CONTROL, []) + of_type.get(UNKNOWN, []))
    unreachable = control_ids.union(of_type.get(UNUSED, []))
    added = of_type.get(USER_DEFINED, [])
    core = tokenizers.Tokenizer(_bpe(tokens, unreachable, _list(metadata, "merges", str), cutting.whole_words))
    if cutting.nfc:
        core.normalizer = NFC()
    core.pre_tokenizer = cutting.pre_tokenizer()
    core.add_tokens([tokenizers.AddedToken(tokens[token_id], normalized=False) for token_id in added])
    ids = {name: _token_id(metadata, name, len(tokens)) for name in {*NAMED.values(), *END_KEYS}}
    return Vocabulary(
        core=core,
        table=ByteTable(tokens, unreachable.union(added)),
        control=ControlTokens(ControlToken(tokens[token_id], token_id) for token_id in control_ids),
        control_ids=control_ids,
        bos_id=ids["bos"],
        add_bos=bool(metadata.get(PREFIX + "add_bos_token", cutting.add_bos)),
        eos_ids=frozenset(end for key in END_KEYS if (end := ids[key]) is not None),
        named={name: tokens[which] for name, key in NAMED.items() if (which := ids[key]) is not None},
        added=tuple(ControlToken(tokens[token_id], token_id) for token_id in added),
    )


def _bpe(tokens: Sequence[str], unreachable: frozenset[int], merges: Sequence[str], whole_words: bool) -> BPE:
    # Control tokens stay out, so that nothing in a text can lead to one; added tokens must be in to keep their ids.
    vocab = {token: token_id for token_id, token in enumerate(tokens) if token_id not in unreachable}
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    try:
        return BPE(vocab=vocab, merges=pairs, ignore_merges=whole_words)
    except Exception as error:  # what the library raises is not typed
        raise CheckpointError(f"the file's vocabulary and merges do not fit together: {error}") from error


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
