import json
from base64 import b64encode

import pytest

from trimaran.base.errors import CheckpointError
from trimaran.text.tekken_vocab import read_tekken_vocab
from trimaran.text.tokenizer import Tokenizer

TOKENS = [*(bytes([byte]) for byte in range(256)), b"he", b"hel", b"left out"]
CONFIG = {"pattern": r"\S+|\s+", "default_vocab_size": 20 + 258, "default_num_special_tokens": 20, "version": "v13"}
VOCAB = [{"rank": i, "token_bytes": b64encode(token).decode(), "token_str": None} for i, token in enumerate(TOKENS)]
SPECIAL = [
    {"rank": i, "token_str": text, "is_control": text != "[THINK]"}
    for i, text in enumerate(["<unk>", "<s>", "</s>", "[INST]", "[THINK]"])
]


@pytest.fixture
def read(tmp_path):
    def read(**changes):
        file = {"config": CONFIG, "vocab": VOCAB, "special_tokens": SPECIAL, "type": "Tekken"} | changes
        (tmp_path / "tekken.json").write_text(json.dumps(file))
        return Tokenizer(read_tekken_vocab(tmp_path / "tekken.json", {"eos_token_id": 9}))

    return read


def test_control_tokens_come_first_and_are_filled_up(read):
    tokenizer = read()
    assert tokenizer.vocab_size == 278
    assert tokenizer.encode("hel left out")[0] == 20 + 257
    assert tokenizer.encode("[INST]", special=True) == [3]
    assert tokenizer.decode([3, 4, 277, 19], skip_special=True) == "[THINK]hel"
    assert tokenizer.token_bytes(19) == b"<SPECIAL_19>"
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (1, {2, 9})
    assert tokenizer.named == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    assert tokenizer.encode_prompt("hel") == [1, 277]


def test_old_files_leave_their_control_tokens_out(read):
    tokenizer = read(special_tokens=None)
    assert tokenizer.encode("[TOOL_CALLS][SYSTEM_PROMPT][TOOL_CONTENT]", special=True) == [9, 17, 19]
    assert tokenizer.named["pad_token"] == "<pad>"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"config": None}, "cannot be read"),
        ({"vocab": VOCAB[:100]}, "rank 0 to 257"),
        ({"vocab": [VOCAB[1], VOCAB[0], *VOCAB[2:]]}, "rank 0 to 257"),
        ({"vocab": [*VOCAB[:5], VOCAB[5] | {"token_bytes": "!"}, *VOCAB[6:]]}, "base64"),
        ({"special_tokens": [SPECIAL[0]] * 2}, "0 to 19, each once"),
        ({"special_tokens": [{"rank": 0}]}, "cannot be read"),
        ({"config": CONFIG | {"default_num_special_tokens": 1 << 40}}, "asks for a vocabulary of 1099511627776"),
        ({"config": CONFIG | {"default_vocab_size": 10**30}}, "asks for a vocabulary of 1000"),
    ],
)
def test_damage_is_named(read, changes, text):
    with pytest.raises(CheckpointError, match=text):
        read(**changes)
