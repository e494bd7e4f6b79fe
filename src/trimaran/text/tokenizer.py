"""The tokenizer: token ids first, text only at the edges."""

import math
from collections.abc import Iterable

import tokenizers

from trimaran.base.errors import ContextLengthError, RequestError
from trimaran.checkpoint.checkpoint import Checkpoint
from trimaran.text.control import ControlTokens
from trimaran.text.gguf_vocab import read_gguf_vocab
from trimaran.text.vocab_files import read_vocab
from trimaran.text.vocabulary import Vocabulary

NFC_SHRINKS = 3  # normalising makes a Hangul syllable of 3 bytes from three letters of 3, and nothing shrinks more


class Tokenizer:
    """Text to token ids and back. Safe to use from several threads.

    ``special_ids`` are the control tokens that give no text; ``eos_ids`` end an answer (end of text, of turn, of
    message). ``named`` maps ``bos_token``, ``eos_token``, … to their text, for chat templates; ``added`` are tokens
    that were added to the vocabulary without being control tokens. ``drops_blank``: text loses one blank at its
    beginning when it is decoded.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._core = vocabulary.core
        self._inner = vocabulary.inner or vocabulary.core
        self._prefix = vocabulary.prefix
        self._table = vocabulary.table
        self._add_bos = vocabulary.add_bos
        self._most_bytes = math.inf if vocabulary.shrinks else max(1, vocabulary.table.longest()) * NFC_SHRINKS
        self._missing = vocabulary.table.missing()
        self.control: ControlTokens = vocabulary.control
        self.vocab_size = len(vocabulary.table)
        self.bos_id = vocabulary.bos_id
        self.eos_ids = vocabulary.eos_ids
        self.special_ids = vocabulary.control_ids
        self.named = vocabulary.named
        self.added = vocabulary.added
        self.drops_blank = vocabulary.drops_blank

    def encode(self, text: str, special: bool = False) -> list[int]:
        """Token ids of ``text``. Control tokens in it are plain text, unless ``special`` asks for them.

        Raises ``RequestError`` when the text has half of a surrogate pair, which no encoding can hold.
        """
        return self.encode_segments(self.control.split(text) if special else [text])

    def encode_segments(self, segments: Iterable[str | int]) -> list[int]:
        """Ids of a prompt whose control tokens are given by id, and what lies between as plain text.

        A text that follows a text goes on from it: no token spans the cut. Raises as ``encode`` does.
        """
        ids: list[int] = []
        prefix = self._prefix
        for segment in segments:
            if isinstance(segment, int):
                ids.append(segment)
                prefix = self._prefix
            elif segment:
                ids += self._plain(self._inner if ids else self._core, prefix + segment)
                prefix = ""
        return ids

    def encode_prompt(self, text: str) -> list[int]:
        """Ids of a raw prompt that its author wrote whole: BOS where the model expects one, control tokens as such."""
        ids = self.encode(text, special=True)
        if self._add_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)
        return ids

    def fewest_tokens(self, text: str) -> int:
        """A lower bound on how many tokens ``text`` has, from its length alone: tokenising takes much memory."""
        kept = text.encode("utf-8", "surrogatepass").translate(None, self._missing)
        return math.ceil(len(kept) / self._most_bytes)

    def require_room(self, *texts: str, context: int, param: str) -> None:
        """Raises ``ContextLengthError`` when the prompt that ``texts`` make cannot fit into ``context``."""
        fewest = sum(map(self.fewest_tokens, texts))
        if fewest >= context:
            raise ContextLengthError(
                f"the prompt has at least {fewest} tokens, too many for a context of {context} and an answer",
                param=param,
            )

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """Text of ``ids``; bytes that are not UTF-8 become U+FFFD, ids past the vocabulary nothing."""
        hidden = self.special_ids if skip_special else frozenset()
        data = b"".join(self._table[token_id] for token_id in ids if token_id not in hidden)
        return (data.removeprefix(b" ") if self.drops_blank else data).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes that a token stands for; ``b""`` for ids past the vocabulary."""
        return self._table[token_id]

    def _plain(self, core: tokenizers.Tokenizer, text: str) -> list[int]:
        try:  # a batch, since ``encode`` keeps the interpreter lock: other threads would stand still
            ids: list[int] = core.encode_batch_fast([text], add_special_tokens=False)[0].ids
            return ids
        except TypeError:
            raise RequestError("the text holds half of a surrogate pair (U+D800 to U+DFFF)", param="prompt") from None


def open_tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    """The tokenizer that belongs to a model: inside its GGUF file, or beside its tensors.

    Keeps nothing of the checkpoint. Raises ``CheckpointError`` and ``UnsupportedError``.
    """
    if checkpoint.kind == "gguf":
        return Tokenizer(read_gguf_vocab(checkpoint.metadata))
    return Tokenizer(read_vocab(checkpoint.directory, checkpoint.metadata, checkpoint.read))
