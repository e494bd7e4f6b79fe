"""A model whose tokenizer puts a blank before every text (SentencePiece): who gets that blank, and who does not."""

import shutil
from pathlib import Path

import openai
import pytest

from trimaran.kernels.null import NullModel
from trimaran.text.tokenizer import Tokenizer
from trimaran.text.vocab_files import read_vocab

from .byte_model import write_byte_model
from .running import NAME, running

TINY = Path(__file__).parents[1] / "data" / "tokenizers" / "tiny" / "sentencepiece" / "tokenizer.model"


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = write_byte_model(tmp_path_factory.mktemp("pieces"))
    (folder / "tokenizer.json").unlink()
    shutil.copy(TINY, folder)
    vocab = Tokenizer(read_vocab(folder, {})).vocab_size
    with running(folder, null=NullModel(vocab=vocab, context=2048)) as server:
        yield openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0)


@pytest.fixture(scope="module")
def forced():
    """Options that leave the model one word to say."""
    ids = Tokenizer(read_vocab(TINY.parent, {})).encode("the")
    assert len(ids) == 1
    return {"model": NAME, "logit_bias": {str(ids[0]): 100}, "max_tokens": 3}


@pytest.mark.parametrize("stream", [False, True])
def test_a_message_begins_without_it(client, forced, stream):
    answer = client.chat.completions.create(messages=[{"role": "user", "content": "hi"}], stream=stream, **forced)
    if stream:
        text = "".join(chunk.choices[0].delta.content or "" for chunk in answer)
    else:
        text = answer.choices[0].message.content
    assert text == "the the the"


@pytest.mark.parametrize("stream", [False, True])
def test_text_that_goes_on_keeps_it(client, forced, stream):
    answer = client.completions.create(prompt="And so", stream=stream, **forced)
    text = "".join(chunk.choices[0].text for chunk in answer) if stream else answer.choices[0].text
    assert text == " the the the"
