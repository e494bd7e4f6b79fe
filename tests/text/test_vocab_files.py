import shutil
from pathlib import Path

import pytest

from trimaran.base.errors import CheckpointError
from trimaran.text.tokenizer import open_tokenizer
from trimaran.text.vocab_files import READERS, read_vocab

TINY = Path(__file__).parents[1] / "data" / "tokenizers" / "tiny"
FOLDERS = {
    "tekken.json": "tekken-v13",
    "tokenizer.json": "llama2",
    "tiktoken.model": "kimi",
    "qwen.tiktoken": "qwen",
    "tokenizer.model": "sentencepiece",
}


def copy(directory, *names):
    for name in names:
        for file in (TINY / FOLDERS[name]).iterdir():
            shutil.copy(file, directory)


@pytest.mark.parametrize(
    ("names", "winner"),
    [
        (["tokenizer.json", "tekken.json"], "tekken.json"),
        (["tokenizer.model", "tokenizer.json"], "tokenizer.json"),
        (["tiktoken.model"], "tiktoken.model"),
    ],
)
def test_which_file_wins(tmp_path, names, winner):
    copy(tmp_path, *names)
    alone = read_vocab(TINY / FOLDERS[winner], {})
    assert read_vocab(tmp_path, {}).core.to_str() == alone.core.to_str()


def test_no_file_is_an_error_that_names_all(tmp_path):
    with pytest.raises(CheckpointError) as caught:
        read_vocab(tmp_path, {})
    assert all(name in str(caught.value) for name in READERS)


def test_a_checkpoint_is_read_by_kind(tmp_path, fake_checkpoint):
    copy(tmp_path, "tokenizer.model")
    checkpoint = fake_checkpoint(kind="safetensors", metadata={"eos_token_id": 77}, directory=tmp_path)
    assert open_tokenizer(checkpoint).eos_ids == {2, 77}
