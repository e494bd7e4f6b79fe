"""A tiny tokenizer of every kind, held to the ids that reference libraries give a thousand strings.

``scripts/tokenizers/goldens.py`` makes them; ``make tokenizers`` does the same with real tokenizers.
"""

import gzip
import json
import unicodedata
from functools import cache
from pathlib import Path

import pytest
from scripts.tokenizers.digests import differing

from trimaran.base.messages import Token
from trimaran.text.gguf_vocab import read_gguf_vocab
from trimaran.text.pretokenizers import CUTTINGS
from trimaran.text.stream import TextStream
from trimaran.text.tokenizer import Tokenizer
from trimaran.text.vocab_files import read_vocab

DATA = Path(__file__).parents[1] / "data" / "tokenizers"
STRINGS = json.loads(gzip.decompress((DATA / "strings.json.gz").read_bytes()))
GOLDENS = json.loads((DATA / "tiny.json").read_text())
GGUF = json.loads((DATA / "tiny" / "gguf.json").read_text())
BLANKS = {"llama2", "gemma", "metaspace-first", "sentencepiece", "llama", "llama without blank"}  # U+2581 is one
NFC = {"qwen", "gpt2 qwen2", "gpt2 qwen35"}


@cache
def opened(name):
    kind, _, rest = name.partition(" ")
    if kind not in GGUF:
        return Tokenizer(read_vocab(DATA / "tiny" / name, {}))
    options = {"pre": rest} if kind == "gpt2" else {"add_space_prefix": not rest}
    return Tokenizer(read_gguf_vocab({f"tokenizer.ggml.{key}": value for key, value in (GGUF[kind] | options).items()}))


def kept(name, text):
    """What encoding keeps of a text."""
    if name in NFC:
        return unicodedata.normalize("NFC", text)
    if name == "metaspace-first" and text[:1] in " ▁":  # takes a blank that is there already for the one that it adds
        text = text[1:]
    return text.replace("▁", " ") if name in BLANKS else text


@pytest.mark.parametrize("name", GOLDENS)
def test_ids_are_the_references(name):
    tokenizer = opened(name)
    wrong = [STRINGS[at] for at in differing([tokenizer.encode(text) for text in STRINGS], GOLDENS[name]["digests"])]
    assert not wrong, f"{len(wrong)} of {len(STRINGS)} strings, among them {wrong[:3]!a}"
    for text, ids in GOLDENS[name]["examples"]:
        assert tokenizer.encode(text) == ids


@pytest.mark.parametrize("name", GOLDENS)
def test_text_comes_back_whole_and_streamed(name):
    tokenizer = opened(name)
    for text in STRINGS:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == kept(name, text)
        stream = TextStream(tokenizer, message=True)
        assert "".join(stream.feed([Token(i)]).text for i in ids) + stream.finish().text == kept(name, text)


@pytest.mark.parametrize("name", GOLDENS)
def test_no_text_leads_to_a_control_token_and_the_bound_holds(name):
    tokenizer = opened(name)
    steering = {token.id for token in tokenizer.control} | tokenizer.special_ids
    for text in [*STRINGS, *(token.text for token in tokenizer.control)]:
        ids = tokenizer.encode(text)
        assert not steering.intersection(ids), text
        assert tokenizer.fewest_tokens(text) <= len(ids)


def test_every_way_to_cut_words_has_goldens():
    aliases = {"llama3", "llama-v3", "pixtral", "llama4", "deepseek-r1-qwen"}  # of rows that do
    elsewhere = {"starcoder", "refact", "default", "deepseek-llm"}  # test_pretokenizers.py, and make tokenizers
    assert {name.removeprefix("gpt2 ") for name in GOLDENS if name.startswith("gpt2 ")} == (
        CUTTINGS.keys() - aliases - elsewhere
    )
