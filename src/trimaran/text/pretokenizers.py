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
    ``add_bos`` holds where the file does not say. ``ranked``: the vocabulary comes from a tiktoken file, so ids rank
    tokens, and merges (if there are any) are a selection.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    nfc: bool = False
    add_bos: bool = False
    ranked: bool = False

    def pre_tokenizer(self) -> PreTokenizer:
        """The ``tokenizers`` object that cuts like this and writes the pieces in the byte alphabet."""
        splits: list[PreTokenizer] = [Split(tokenizers.Regex(pattern), "isolated") for pattern in self.patterns]
        return Sequence([*splits, ByteLevel(add_prefix_space=False, use_regex=False)])


_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"  # English contractions
_SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACE}"
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_QWEN35 = rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACE}"


def _cased(upper: str, lower: str, after: str) -> str:
    """Words of letters that go from upper to lower case; ``after`` may follow."""
    before = r"[^\r\n\p{L}\p{N}]?"
    return f"{before}{upper}*{lower}+{after}|{before}{upper}+{lower}*{after}"


_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = rf"{_cased(_UPPER, _LOWER, '')}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACE}"
_O200K = rf"{_cased(_UPPER, _LOWER, _SHORT + '?')}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACE}"
_NOT_HAN = r"&&[^\p{Han}]]"
_KIMI = (
    rf"[\p{{Han}}]+|{_cased(_UPPER[:-1] + _NOT_HAN, _LOWER[:-1] + _NOT_HAN, _SHORT + '?')}"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACE}"
)
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"""
    + _SPACE,
)
_CASED = (  # letters of scripts with two cases, as DeepSeek lists them
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅ"
    "ὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎ"
    "ꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_CASED}]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
    r"\p{N}+",
)

GPT2 = Cutting((_GPT2,))
DIGITS_APART = Cutting((r"\p{N}", _GPT2))
LLAMA3 = Cutting((_LLAMA3,), whole_words=True, add_bos=True)
GLM = Cutting((_LLAMA3,), whole_words=True)
QWEN2 = Cutting((_QWEN2,), nfc=True)
QWEN35 = Cutting((_QWEN35,), nfc=True)
TEKKEN = Cutting((_TEKKEN,), whole_words=True, add_bos=True)
O200K = Cutting((_O200K,), whole_words=True)
MINIMAX = Cutting((_O200K,))
KIMI = Cutting((_KIMI,), whole_words=True, ranked=True)
DEEPSEEK3 = Cutting(_DEEPSEEK3)
DEEPSEEK_LLM = Cutting(_DEEPSEEK_LLM)
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
    "pixtral": LLAMA3,
    "chatglm-bpe": Cutting((_LLAMA3,)),
    "glm4": GLM,
    "glm5": GLM,
    "qwen2": QWEN2,
    "deepseek-r1-qwen": QWEN2,
    "qwen35": QWEN35,
    "deepseek-llm": DEEPSEEK_LLM,
    "deepseek-v3": DEEPSEEK3,
    "tekken": TEKKEN,
    "gpt-4o": O200K,
    "llama4": O200K,
    "minimax-m2": MINIMAX,
    "kimi-k2": KIMI,
}


def find_cutting(name: str) -> Cutting:
    """The row called ``name``; raises ``CheckpointError`` where there is none: a guess would garble every prompt."""
    if name not in CUTTINGS:
        raise CheckpointError(
            f"the vocabulary uses the pre-tokenizer {name!r} (tokenizer.ggml.pre), which is not known here;"
            f" known are {', '.join(CUTTINGS)}"
        )
    return CUTTINGS[name]
