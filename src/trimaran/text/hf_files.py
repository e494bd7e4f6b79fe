"""Writes the vocabulary of a GGUF file as Hugging Face's tokenizer files: for a copy of the model in that layout."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trimaran.base.errors import UnsupportedError
from trimaran.text.gguf_vocab import PREFIX, read_gguf_vocab
from trimaran.text.sentencepiece import BLANK
from trimaran.text.template_source import GGUF_KEY
from trimaran.text.vocabulary import Vocabulary

_PIECES = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"String": BLANK}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ],
}
_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}


def write_hf_files(metadata: Mapping[str, Any], folder: Path) -> None:
    """``tokenizer.json``, ``tokenizer_config.json``, ``generation_config.json`` and, where there is one,
    ``chat_template.jinja``.

    Text gets the ids that it gets from the GGUF file. Raises as ``read_gguf_vocab`` does, and ``UnsupportedError`` on
    vocabularies that put a blank before every text.
    """
    vocabulary = read_gguf_vocab(metadata)
    if vocabulary.prefix:
        raise UnsupportedError("vocabularies that put a blank before every text cannot be written as tokenizer.json")
    pieces = metadata.get(f"{PREFIX}model") == "llama"
    _write(folder / "tokenizer.json", _tokenizer(vocabulary, pieces=pieces))
    options = {"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": vocabulary.add_bos, **vocabulary.named}
    options["clean_up_tokenization_spaces"] = False
    _write(folder / "tokenizer_config.json", options)
    ends = {"bos_token_id": vocabulary.bos_id, "eos_token_id": sorted(vocabulary.eos_ids)}
    _write(folder / "generation_config.json", ends)
    if isinstance(template := metadata.get(GGUF_KEY), str):
        (folder / "chat_template.jinja").write_text(template, "utf-8")


def _tokenizer(vocabulary: Vocabulary, *, pieces: bool) -> dict[str, Any]:
    file: dict[str, Any] = json.loads(vocabulary.core.to_str())
    for token in vocabulary.control:
        file["model"]["vocab"][token.text] = token.id
    shown = [(token, False) for token in vocabulary.added]
    shown += [(token, token.id in vocabulary.control_ids) for token in vocabulary.control]
    file["added_tokens"] = [
        {
            "id": token.id,
            "content": token.text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": special,
        }
        for token, special in sorted(shown, key=lambda each: each[0].id)
    ]
    file["decoder"] = _PIECES if pieces else _BYTES
    bos = vocabulary.named.get("bos_token")
    if vocabulary.add_bos and bos is not None:
        first, text = {"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
        file["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [first, text],
            "pair": [first, text, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {bos: {"id": bos, "ids": [vocabulary.bos_id], "tokens": [bos]}},
        }
    return file


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8")
