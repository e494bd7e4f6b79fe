"""What every tokenizer file comes down to, whatever its format."""

from dataclasses import dataclass, field

import tokenizers

from trimaran.text.byte_table import ByteTable
from trimaran.text.control import ControlToken, ControlTokens


@dataclass(frozen=True)
class Vocabulary:
    """``core`` turns plain text into ids and never yields a control token.

    Tokens that were added to the vocabulary but do not steer the model (``<think>`` and ``<tool_call>`` of Qwen3) are
    plain text here: ``core`` finds them. ``added`` lists them for chat templates, where some are a prompt's structure.
    """

    core: tokenizers.Tokenizer
    table: ByteTable
    control: ControlTokens
    control_ids: frozenset[int]  # those of ``control`` that give no text in an answer
    bos_id: int | None
    add_bos: bool  # a raw prompt begins with BOS
    eos_ids: frozenset[int]  # end of text, of turn and of message
    named: dict[str, str] = field(default_factory=dict)  # "bos_token", "eos_token", … as chat templates call them
    added: tuple[ControlToken, ...] = ()
    inner: tokenizers.Tokenizer | None = None  # for text that does not begin the prompt, where that matters
    prefix: str = ""  # put before every plain text: SentencePiece's "dummy prefix"
    drops_blank: bool = False  # decoding takes away one blank at the beginning, which encoding has put there
    shrinks: bool = False  # text of any length may become few tokens (white space that is dropped, a lasting unknown)
