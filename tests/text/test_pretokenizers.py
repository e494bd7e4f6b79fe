import pytest

from trimaran.base.errors import CheckpointError
from trimaran.text.byte_level import ALPHABET
from trimaran.text.pretokenizers import CUTTINGS, find_cutting

BYTE = {char: byte for byte, char in enumerate(ALPHABET)}


def cut(name, text):
    pieces = find_cutting(name).pre_tokenizer().pre_tokenize_str(text)
    return [bytes(BYTE[char] for char in piece).decode() for piece, _ in pieces]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("gpt-2", "I'll  pay 100$ you've", ["I", "'ll", " ", " pay", " 100", "$", " you", "'ve"]),
        ("gpt-2", "I'LL", ["I", "'", "LL"]),
        ("gpt-2", "a\n\n b  ", ["a", "\n\n", " b", "  "]),
        ("smollm", "in 1024 days", ["in", " ", "1", "0", "2", "4", " days"]),
        ("smollm", "v1.5", ["v", "1", ".", "5"]),
        ("starcoder", "x10", ["x", "1", "0"]),
        ("refact", "x10", ["x", "1", "0"]),
        ("llama-bpe", "in 1234567 days", ["in", " ", "123", "456", "7", " days"]),
        ("llama-bpe", "I'LL (go)\n\nx", ["I", "'LL", " (", "go", ")\n\n", "x"]),
        ("llama-bpe", "a  \n b", ["a", "  \n", " b"]),
        ("llama3", "_name", ["_name"]),
        ("llama-v3", "12345", ["123", "45"]),
        ("qwen2", "in 123 days", ["in", " ", "1", "2", "3", " days"]),
        ("deepseek-r1-qwen", "I'LL 12", ["I", "'LL", " ", "1", "2"]),
        ("default", "a=12345 (b)", ["a", "=", "123", "45", " ", "(", "b", ")"]),
        ("qwen35", "x\u0301y 12", ["x\u0301y", " ", "1", "2"]),
        ("deepseek-v3", "in 1234x 你好world .a", ["in", " ", "123", "4", "x", " ", "你好", "world", " .", "a"]),
        ("deepseek-llm", "a 12\r\nb!? 你好", ["a", " ", "12", "\r", "\n", "b", "!?", " ", "你好"]),
        ("chatglm-bpe", "I'LL 1234", ["I", "'LL", " ", "123", "4"]),
        ("glm4", "12345", ["123", "45"]),
        ("glm5", "12345", ["123", "45"]),
        ("tekken", "HelloWorld's 123 a/b/\n", ["Hello", "World", "'s", " ", "1", "2", "3", " a", "/b", "/\n"]),
        ("gpt-4o", "HelloWorld's 1234 a/b/\n", ["Hello", "World's", " ", "123", "4", " a", "/b", "/\n"]),
        ("llama4", "HELLOworld", ["HELLOworld"]),
        ("minimax-m2", "World's 1234", ["World's", " ", "123", "4"]),
        ("kimi-k2", "World's你好World 1234/\n", ["World's", "你好", "World", " ", "123", "4", "/\n"]),
        ("pixtral", "12345", ["123", "45"]),
    ],
)
def test_words(name, text, words):
    assert cut(name, text) == words


@pytest.mark.parametrize("name", CUTTINGS)
@pytest.mark.parametrize("text", ["", " ", "a b\t\tc\r\n", "你好 1½! 🎉\u200b", "'' --- 's"])
def test_nothing_is_lost(name, text):
    assert "".join(cut(name, text)) == text


def test_an_unknown_name_is_an_error_that_names_it():
    with pytest.raises(CheckpointError, match=r"'made-up'.*llama-bpe"):
        find_cutting("made-up")


def test_who_normalises_keeps_whole_words_and_begins_with_bos():
    assert {name for name, c in CUTTINGS.items() if c.nfc} == {"qwen2", "qwen35", "deepseek-r1-qwen"}
    llama3 = {"llama-bpe", "llama3", "llama-v3", "pixtral"}
    whole = {*llama3, "tekken", "glm4", "glm5", "gpt-4o", "llama4", "kimi-k2"}
    assert {name for name, c in CUTTINGS.items() if c.whole_words} == whole
    assert {name for name, c in CUTTINGS.items() if c.add_bos} == {*llama3, "tekken"}
    assert {name for name, c in CUTTINGS.items() if c.ranked} == {"kimi-k2"}
