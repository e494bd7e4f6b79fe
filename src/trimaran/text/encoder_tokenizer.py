"""The tokenizer of an encoder: a text to the ids that the model reads, with the control tokens that frame it.

``tokenizer.json`` is taken as it stands, whatever its kind of vocabulary: nothing is ever decoded.
"""

from collections.abc import Sequence
from pathlib import Path

import tokenizers

from trimaran.base.errors import CheckpointError, RequestError
from trimaran.checkpoint import Checkpoint
from trimaran.checkpoint.json_file import Read

ARCHITECTURES = frozenset({"BertModel"})  # of models that make a vector of a text


def is_encoder(checkpoint: Checkpoint) -> bool:
    """Whether a model makes vectors of texts, by what its files call its architecture."""
    names = checkpoint.metadata.get("architectures") if checkpoint.kind == "safetensors" else None
    return isinstance(names, list) and names[:1] != [] and names[0] in ARCHITECTURES


class EncoderTokenizer:
    """Texts to token ids. Safe to use from several threads."""

    def __init__(self, path: Path, read: Read = Path.read_bytes) -> None:
        """From a ``tokenizer.json``; raises ``CheckpointError`` when there is none, or a damaged one."""
        try:
            data = read(path)
        except OSError as error:
            raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
        try:
            core = tokenizers.Tokenizer.from_buffer(data)
        except BaseException as error:  # what the library raises is not typed, and where it panics no Exception
            if isinstance(error, Exception) or type(error).__name__ == "PanicException":
                raise CheckpointError(f"{path} cannot be read: {error}") from error
            raise
        core.no_truncation()  # a text that is cut without a word gives the vector of another one
        core.no_padding()
        core.encode_special_tokens = True  # control tokens in a text are text
        self._core = core

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text. Raises ``RequestError`` when one has half of a surrogate pair."""
        try:
            return [each.ids for each in self._core.encode_batch_fast(list(texts), add_special_tokens=True)]
        except TypeError:
            raise RequestError("a text holds half of a surrogate pair (U+D800 to U+DFFF)", param="input") from None
