"""Which of a checkpoint's tokenizer files is read.

``tekken.json`` comes first: Mistral's own, while the ``tokenizer.json`` beside it was converted, in some models with
another pattern. Everywhere else ``tokenizer.json`` is what the model's authors publish for others to use.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trimaran.base.errors import CheckpointError
from trimaran.checkpoint.json_file import Read
from trimaran.text.hf_vocab import read_hf_vocab
from trimaran.text.sentencepiece_vocab import read_sentencepiece_vocab
from trimaran.text.tekken_vocab import read_tekken_vocab
from trimaran.text.tiktoken_vocab import read_tiktoken_vocab
from trimaran.text.vocabulary import Vocabulary

READERS = {
    "tekken.json": read_tekken_vocab,
    "tokenizer.json": read_hf_vocab,
    "tiktoken.model": read_tiktoken_vocab,
    "qwen.tiktoken": read_tiktoken_vocab,
    "tokenizer.model": read_sentencepiece_vocab,
}


def read_vocab(directory: Path, config: Mapping[str, Any], read: Read = Path.read_bytes) -> Vocabulary:
    """The vocabulary of a checkpoint in ``directory``; ``config`` is its parsed ``config.json``, ``read`` reads files.

    Raises ``CheckpointError`` where there is no file or a damaged one, ``UnsupportedError`` where it is of a kind that
    is not read here.
    """
    for name, reader in READERS.items():
        if (directory / name).is_file():
            return reader(directory / name, config, read)
    raise CheckpointError(f"{directory} has no tokenizer; one of {', '.join(READERS)} must lie beside the tensors")
