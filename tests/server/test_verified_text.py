"""What the server reads of a verified model, it holds against the manifest by itself."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from trimaran.base.errors import IntegrityError
from trimaran.checkpoint.model_files import MappedFiles
from trimaran.checkpoint.verify import Verification, text_files, write_model_manifest
from trimaran.engine.constraints.tokens import read_token_table
from trimaran.server.assembly import Text, load_text
from trimaran.text.vocab_files import read_vocab

from .byte_model import END, VOCAB, write_byte_model
from .running import running

TINY = Path(__file__).parents[1] / "data" / "tokenizers" / "tiny"
NAMES = ["tokenizer.json", "tokenizer_config.json", "config.json", "chat_template.jinja"]


@pytest.fixture
def model(tmp_path) -> Path:
    write_byte_model(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    write_model_manifest(tmp_path)
    return tmp_path


def tamper(path: Path) -> None:
    """Changes a byte and not the size."""
    data = bytearray(path.read_bytes())
    data[data.index(b"e")] = ord("a")
    path.write_bytes(data)


def verified(folder: Path):
    return text_files(folder, Verification.AUTO)


def test_what_is_whole_is_read(model):
    assert load_text(model, None, verified(model)).tokenizer.vocab_size == VOCAB


@pytest.mark.parametrize("name", NAMES)
def test_a_changed_file_is_refused_and_named(model, name):
    tamper(model / name)
    with pytest.raises(IntegrityError, match=name.replace(".", r"\.")):
        load_text(model, None, verified(model))


def test_a_changed_file_keeps_the_server_from_serving(model):
    tamper(model / "chat_template.jinja")
    with pytest.raises(IntegrityError, match="chat_template"), running(model):
        raise AssertionError("it serves")
    with running(model, verify="never") as server:
        assert server.http.get("/ready").status_code == 200


def test_an_extra_file_is_refused(model):
    (model / "added_tokens.json").write_text("{}")
    with pytest.raises(IntegrityError, match="added_tokens"):
        verified(model)


def test_the_table_of_a_grammar_is_of_the_right_tokenizer(model):
    ends = frozenset({END})
    assert len(read_token_table(model, VOCAB, ends, lambda: verified(model)).tokens) == VOCAB
    tamper(model / "tokenizer.json")
    with pytest.raises(IntegrityError, match=r"tokenizer\.json"):
        read_token_table(model, VOCAB, ends, lambda: verified(model))


def test_a_file_with_weights_and_tokenizer_must_be_the_one_that_the_engine_has_read():
    text = Text(None, None, sampled="a")  # type: ignore[arg-type]  # neither matters
    text.require(SimpleNamespace(sampled="a"))
    text.require(SimpleNamespace(sampled=""))  # the null executor's
    with pytest.raises(IntegrityError, match="was changed while it was loaded"):
        text.require(SimpleNamespace(sampled="b"))
    Text(None, None).require(SimpleNamespace(sampled="b"))  # type: ignore[arg-type]  # files of its own are verified


class Remembered(MappedFiles):
    """Gives what files held before they were spoilt."""

    def __init__(self, folder: Path) -> None:
        self.before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for path in self.before:
            if path.suffix != ".safetensors":
                path.write_bytes(b"spoilt")

    def read(self, path: Path) -> bytes:
        return self.before[path]


def test_all_that_is_read_is_what_was_checked(model):
    assert load_text(model, None, Remembered(model)).tokenizer.vocab_size == VOCAB


@pytest.mark.parametrize("kind", sorted(path.name for path in TINY.iterdir() if path.is_dir()))
def test_so_is_every_kind_of_vocabulary(tmp_path, kind):
    folder = Path(shutil.copytree(TINY / kind, tmp_path / kind))
    plain = read_vocab(folder, {}).core.to_str()
    assert read_vocab(folder, {}, Remembered(folder).read).core.to_str() == plain
