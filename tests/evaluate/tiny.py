"""Random Llamas of a few kilobytes that read characters, on disk and as open sequences."""

from pathlib import Path

from tests.engine.tiny_model import write_model
from tests.server.byte_model import VOCAB, write_byte_model

from trimaran.base.formats import ActivationFormat, KVFormat
from trimaran.evaluate.configuration import Configuration, Formats, open_sequences
from trimaran.evaluate.sequences import Sequences

CONTEXT = 1024


def write_tiny(directory: Path, *, seed: int = 0, nan_in: str | None = None) -> Path:
    """A checkpoint with a tokenizer: one token per ASCII character. Its numbers depend on ``seed``."""
    write_model(directory, vocab=VOCAB, context=CONTEXT, seed=seed, nan_in=nan_in, nan_row=3)
    other = directory / "tokenizer"
    other.mkdir()
    write_byte_model(other)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (other / name).rename(directory / name)
    return directory


def opened(
    model: Path,
    kv: KVFormat = KVFormat.BF16,
    prefill: KVFormat | None = None,
    executor: str = "native",
    longest: int = 128,
) -> Sequences:
    """``model`` with pages of ``kv``, perhaps behind one that prefills with others."""
    first = None if prefill is None else Formats(model, kv=prefill)
    return open_sequences(
        Configuration("tiny", Formats(model, kv=kv), first, ActivationFormat.FP32, executor, threads=2), longest
    )
