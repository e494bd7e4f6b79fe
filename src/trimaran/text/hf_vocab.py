"""Reads ``tokenizer.json`` (Hugging Face's format), whose way to encode is taken as it stands."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec
import tokenizers
from tokenizers.models import BPE

from trimaran.base.errors import CheckpointError, UnsupportedError
from trimaran.checkpoint.json_file import Read
from trimaran.text.byte_level import byte_level_table
from trimaran.text.control import ControlToken, ControlTokens, is_marker
from trimaran.text.sentencepiece import BLANK, piece_table
from trimaran.text.token_config import TokenConfig, check_size
from trimaran.text.vocabulary import Vocabulary

# Normalisers and pre-tokenisers that lose no text, unless an option says so.
_KEEPING = frozenset(
    {"Sequence", "NFC", "Prepend", "Replace", "Split", "ByteLevel", "Metaspace", "Digits", "Punctuation"}
)


class _AddedToken(msgspec.Struct):
    id: int
    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False
    special: bool = False


class _File(msgspec.Struct):
    """The file's parts; what may be large stays as it was written."""

    model: msgspec.Raw
    added_tokens: list[_AddedToken] = []
    normalizer: Any = None
    pre_tokenizer: Any = None
    post_processor: Any = None
    decoder: Any = None


def read_hf_vocab(path: Path, config: Mapping[str, Any], read: Read = Path.read_bytes) -> Vocabulary:
    """Builds the vocabulary from the file at ``path``, its companions, and ``config``, the parsed ``config.json``.

    Raises ``CheckpointError`` when a file is damaged, ``UnsupportedError`` when it is neither byte-level BPE nor BPE
    over pieces with U+2581 for a blank, or where text may lead to a control token.
    """
    file, companions = _read(path, read), TokenConfig.read(path.parent, config, read)
    special = frozenset(token.id for token in file.added_tokens if token.special)
    for entry in file.added_tokens:
        entry.special = entry.special or is_marker(entry.content)
    core = _build(file, path)
    spelling = _spelling(core)
    if spelling is None:
        raise UnsupportedError(
            f"{path} holds a {type(core.model).__name__} vocabulary, or spells its tokens in a way unknown here;"
            " this version reads byte-level BPE and BPE in SentencePiece's spelling"
        )
    with _library(path):
        begins_with = core.encode("").ids  # what the file's own post-processor adds
    core.encode_special_tokens = True  # from here on, control tokens in text are text
    tokens = _texts(core, path)
    added = core.get_added_tokens_decoder()
    control = [_token(token_id, token) for token_id, token in added.items() if token.special]
    for token in control:
        if token.id in core.encode(token.text, add_special_tokens=False).ids:
            raise UnsupportedError(f"{path} has rules by which a text becomes the control token {token.text!r}")
    table = byte_level_table(tokens, added.keys()) if spelling == "byte-level" else piece_table(tokens, special)
    ids = {name: core.token_to_id(text) for name, text in companions.named.items()}
    return Vocabulary(
        core=core,
        table=table,
        control=ControlTokens(control),
        control_ids=special,
        bos_id=ids.get("bos_token"),
        add_bos=bool(companions.options.get("add_bos_token", begins_with[:1] == [ids.get("bos_token")])),
        eos_ids=companions.ends(ids.get("eos_token")),
        named=companions.named,
        added=tuple(_token(token_id, token) for token_id, token in added.items() if not token.special),
        inner=_inner(file, path),
        drops_blank=spelling == "pieces" and core.decoder.decode([BLANK + "x"]) == "x",
        shrinks=_drops_text(file) or (spelling == "pieces" and len(table.missing()) > 0),
    )


def _read(path: Path, read: Read) -> _File:
    try:
        return msgspec.json.decode(read(path), type=_File)
    except (OSError, msgspec.DecodeError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def _build(file: _File, path: Path) -> tokenizers.Tokenizer:
    with _library(path):
        return tokenizers.Tokenizer.from_buffer(msgspec.json.encode(file))


@contextmanager
def _library(path: Path) -> Iterator[None]:
    """What the library raises is not typed, and where it panics no ``Exception``."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise CheckpointError(f"{path} cannot be read: {error}") from error
        raise


def _token(token_id: int, token: tokenizers.AddedToken) -> ControlToken:
    return ControlToken(token.content, token_id, token.lstrip, token.rstrip)


def _inner(file: _File, path: Path) -> tokenizers.Tokenizer | None:
    """The same without a blank before the first word, for files that put one before the prompt's first word only."""
    schemes = [part for part in _parts(file.pre_tokenizer) if part.get("prepend_scheme") == "first"]
    if not schemes:
        return None
    for part in schemes:
        part["prepend_scheme"] = "never"
    core = _build(file, path)
    core.encode_special_tokens = True
    return core


def _spelling(core: tokenizers.Tokenizer) -> Literal["byte-level", "pieces"] | None:
    """How tokens are written, told from what the decoder makes of them."""
    if core.decoder is None or not isinstance(core.model, BPE):
        return None
    if core.decoder.decode(["x", "\u0120x"]) == "x x":
        return "byte-level"
    return "pieces" if core.decoder.decode(["x", f"{BLANK}x"]) == "x x" else None


def _texts(core: tokenizers.Tokenizer, path: Path) -> list[str]:
    vocab = core.get_vocab(with_added_tokens=True)
    count = max(vocab.values(), default=-1) + 1
    check_size(count, path)
    texts = [""] * count
    for text, token_id in vocab.items():
        texts[token_id] = text
    return texts


def _parts(part: Any) -> Iterator[dict[str, Any]]:
    """A normaliser or pre-tokeniser, and those in it if it is a sequence."""
    if isinstance(part, dict):
        yield part
        for inner in (*part.get("normalizers", []), *part.get("pretokenizers", [])):
            yield from _parts(inner)


def _drops_text(file: _File) -> bool:
    """Whether encoding may pass over text of any length."""
    parts = [*_parts(file.normalizer), *_parts(file.pre_tokenizer)]
    return (
        any(str(part.get("type")) not in _KEEPING or part.get("behavior") == "Removed" for part in parts)
        or any(token.lstrip or token.rstrip for token in file.added_tokens)
        or any(part.get("type") == "Replace" and not part.get("content") for part in parts)
    )
