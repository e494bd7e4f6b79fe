"""tokenizer.json written from a GGUF vocabulary gives every text the same ids, in our reader and in the library."""

import json

import pytest
import tokenizers

from trimaran.base.errors import UnsupportedError
from trimaran.text.gguf_vocab import read_gguf_vocab
from trimaran.text.hf_files import write_hf_files
from trimaran.text.tokenizer import Tokenizer
from trimaran.text.vocab_files import read_vocab

TEXT = "hello <think> héllo\n\n  <|im_end|><bos> ☃ hell o [PAD0]"


@pytest.mark.parametrize("pre", ["llama-bpe", "gpt-2", "qwen2"])
def test_ids_texts_and_ends_are_the_same(vocab, pre, tmp_path):
    metadata = {**vocab(pre=pre), "tokenizer.chat_template": "{{ messages }}"}
    write_hf_files(metadata, tmp_path)
    before, after = Tokenizer(read_gguf_vocab(metadata)), Tokenizer(read_vocab(tmp_path, {}))
    for special in (False, True):
        ids = before.encode(TEXT, special)
        assert after.encode(TEXT, special) == ids
        assert after.decode(ids, skip_special=False) == before.decode(ids, skip_special=False)
    assert after.encode_prompt(TEXT) == before.encode_prompt(TEXT)
    for name in ("bos_id", "eos_ids", "special_ids", "named"):
        assert getattr(after, name) == getattr(before, name), name
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert library.encode("hello").ids == before.encode_prompt("hello")
    assert (tmp_path / "chat_template.jinja").read_text() == "{{ messages }}"
    assert json.loads((tmp_path / "generation_config.json").read_text())["eos_token_id"] == sorted(before.eos_ids)


def test_sentencepiece_without_a_blank_before_the_text(tmp_path):
    texts = ["<unk>", "<bos>", "<0xE2>", "<0x98>", "<0x83>", "\u2581", "a", "b", "ab", "\u2581ab", "<x>"]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.scores": [-1.0 * i for i in range(len(texts))],
        "tokenizer.ggml.token_type": [2, 3, 6, 6, 6, 1, 1, 1, 1, 1, 4],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.add_space_prefix": False,
    }
    write_hf_files(metadata, tmp_path)
    before, after = Tokenizer(read_gguf_vocab(metadata)), Tokenizer(read_vocab(tmp_path, {}))
    for text in ("ab ab  ba", "\u2603<x>", "bab"):
        assert after.encode_prompt(text) == before.encode_prompt(text)
        assert after.decode(after.encode(text)) == text
    with pytest.raises(UnsupportedError, match="put a blank before every text"):
        write_hf_files({**metadata, "tokenizer.ggml.add_space_prefix": True}, tmp_path)
