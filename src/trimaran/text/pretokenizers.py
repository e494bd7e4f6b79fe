"""How a vocabulary cuts text into words before BPE merges within them: one row for each name that GGUF files use.

The patterns are those of the original ``tokenizer.json`` of each family (``default`` has no original: it is what
llama.cpp does for files that it converted without knowing better). Source of the names: ``llama-vocab.cpp``.
"""

from dataclasses import dataclass

import tokenizers
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Sequence, Split

from trimaran.base.errors import CheckpointError


@dataclass(frozen=True)
class Cutting:
    """``patterns`` act one after another, each on the pieces that those before it left; unmatched text is a piece too.

    ``whole_words``: a word that is itself a token needs no merges to become it. ``nfc``: text is normalised first.
    ``add_bos`` holds where the file does not say.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    nfc: bool = False
    add_bos: bool = False

    def pre_tokenizer(self) -> PreTokenizer:
        """The ``tokenizers`` object that cuts like this and writes the pieces in the byte alphabet."""
        splits: list[PreTokenizer] = [Split(tokenizers.Regex(pattern), "isolated") for pattern in self.patterns]
        return Sequence([*splits, ByteLevel(add_prefix_space=False, use_regex=False)])


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

GPT2 = Cutting((_GPT2,))
DIGITS_APART = Cutting((r"\p{N}", _GPT2))
LLAMA3 = Cutting((_LLAMA3,), whole_words=True, add_bos=True)
QWEN2 = Cutting((_QWEN2,), nfc=True)
DEFAULT = Cutting((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))

CUTTINGS: dict[str, Cutting] = {
    "default": DEFAULT,
    "gpt-2": GPT2,
    "smollm": DIGITS_APART,
    "starcoder": DIGITS_APART,
    "refact": DIGITS_APART,
    "llama-bpe": LLAMA3,
    "llama3": LLAMA3,
    "llama-v3": LLAMA3,
    "qwen2": QWEN2,
    "deepseek-r1-qwen": QWEN2,
}


def find_cutting(name: str) -> Cutting:
    """The row called ``name``; raises ``CheckpointError`` where there is none: a guess would garble every prompt."""
    if name not in CUTTINGS:
        raise CheckpointError(
            f"the vocabulary uses the pre-tokenizer {name!r} (tokenizer.ggml.pre), which is not known here;"
            f" known are {', '.join(CUTTINGS)}"
        )
    return CUTTINGS[name]
