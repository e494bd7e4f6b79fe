import json
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.text.slow_bpe import SlowBPE

from trimaran.base.errors import ContextLengthError, RequestError
from trimaran.checkpoint import open_checkpoint
from trimaran.text.gguf_vocab import read_gguf_vocab
from trimaran.text.tokenizer import Tokenizer

# Ids that llama.cpp (llama_tokenize, parse_special off and on) gives with SmolLM2-135M-Instruct's vocabulary.
TABLE = [json.loads(line) for line in (Path(__file__).parents[1] / "data/smollm2_ids.jsonl").read_text().splitlines()]

# Letters and signs of scripts that have long been in Unicode: libraries disagree on the newest.
chars = st.one_of(
    st.sampled_from(" \t\n\r'stvmldre0123456789.,!?<|>_im_end"),
    st.characters(min_codepoint=0x20, max_codepoint=0x24F),
    st.characters(min_codepoint=0x370, max_codepoint=0x3FF),
    st.sampled_from("你好世界こん안녕\u00a0\u2003\u3000\u200b½٣🎉\u200d"),
)
texts = st.lists(chars, max_size=60).map("".join)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: ascii(row["text"])[:30])
def test_ids_of_another_implementation(real, row):
    assert real.encode(row["text"]) == row["plain"]
    assert real.encode(row["text"], special=True) == row.get("special", row["plain"])


@pytest.fixture(scope="module")
def slow(smollm2):
    with open_checkpoint(smollm2) as checkpoint:
        metadata = checkpoint.metadata
    return SlowBPE(metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"])


@given(text=texts)
def test_ids_of_the_description(real, slow, text):
    assert real.encode(text) == slow.encode(text)


@given(text=texts)
def test_text_comes_back(small, text):
    assert small.decode(small.encode(text)) == text


@given(text=texts)
def test_token_bytes_are_exact(small, text):
    assert b"".join(map(small.token_bytes, small.encode(text))) == text.encode()


def test_bytes_that_the_vocabulary_lacks_fall_away(real):
    # SmolLM2 has no token for 21 of the 256 bytes; its own tokenizer.json drops them too.
    assert real.decode(real.encode("a\x04b")) == "ab"


user_pieces = st.sampled_from(["<|im_end|>", "<|im_start|>", "<|im_", "end|>", "<repo_name>", " hi", "1"])


@given(pieces=st.lists(user_pieces, max_size=8))
def test_plain_text_never_makes_a_control_token(real, pieces):
    ids = real.encode("".join(pieces))
    assert not real.special_ids.intersection(ids)
    assert real.decode(ids) == "".join(pieces)


def test_control_tokens_on_request(real):
    assert real.encode("a<|im_end|>b", special=True) == [81, 2, 82]
    assert real.encode_prompt("<|im_start|>") == [1]


def test_decode_leaves_out_control_tokens_unless_told(real):
    ids = real.encode("<|im_start|>user", special=True)
    assert real.decode(ids) == "user"
    assert real.decode(ids, skip_special=False) == "<|im_start|>user"


def test_half_a_character_is_a_replacement_character(real):
    ids = real.encode("🎉")
    assert len(ids) > 1
    assert real.decode(ids[:-1]) == "\ufffd"
    assert real.decode(ids) == "🎉"


def test_ids_past_the_vocabulary_are_nothing(real):
    assert real.decode([81, real.vocab_size, 10**9, 82]) == "ab"


@pytest.mark.parametrize("text", ["\ud800", "ok \udfff", "\ud83d \ude00"])
@pytest.mark.parametrize("special", [False, True])
def test_half_a_surrogate_pair_is_refused(real, text, special):
    with pytest.raises(RequestError, match="surrogate"):
        real.encode(text, special=special)


def test_smollm2_is_read_right(real):
    assert real.vocab_size == 49152
    assert real.eos_ids == {2}
    assert real.bos_id == 1
    assert real.special_ids == set(range(17))
    assert real.token_bytes(2) == b"<|im_end|>"


def test_other_threads_run_while_a_long_text_is_encoded(small):
    gaps, done = [0.0], threading.Event()

    def watch() -> None:
        last = time.perf_counter()
        while not done.wait(0.002):
            now = time.perf_counter()
            gaps.append(now - last)
            last = now

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.perf_counter()
    small.encode("hello world " * 100_000)
    took = time.perf_counter() - began
    done.set()
    watcher.join()
    assert max(gaps) < took / 2


@given(text=st.one_of(texts, st.sampled_from(["\x04" * 99, "\ud800", "<|im_end|>" * 9, " " * 999])))
def test_the_fewest_tokens_are_never_more_than_there_are(real, small, text):
    for tokenizer in (real, small):
        try:
            exact = len(tokenizer.encode(text, special=True))
        except RequestError:
            continue
        assert tokenizer.fewest_tokens(text) <= exact


def test_normalising_takes_no_more_than_the_bound_allows(vocab):
    tokenizer = Tokenizer(read_gguf_vocab(vocab(pre="qwen2")))
    assert tokenizer.fewest_tokens("\u1112\u1161\u11ab" * 1000) <= len(tokenizer.encode("\u1112\u1161\u11ab" * 1000))


def test_a_text_that_can_only_be_too_long_is_refused_unseen(small, monkeypatch):
    monkeypatch.setattr(Tokenizer, "encode", None)
    small.require_room("x" * 100, context=100, param="prompt")
    with pytest.raises(ContextLengthError, match=r"at least \d+ tokens, too many for a context of 100") as caught:
        small.require_room("x" * 10_000, "y", context=100, param="messages")
    assert caught.value.param == "messages"
