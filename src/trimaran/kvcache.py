"""The KV cache for operators: which formats there are, what a token takes in them, how many fit, and their scales.

    from trimaran import kvcache

    for fmt in kvcache.FORMATS:
        print(fmt, kvcache.token_bytes("smollm2", fmt), kvcache.capacity("smollm2", 400 * 2**20, fmt).tokens)
    kvcache.calibrate("smollm2")  # what fp8-static and int8-static need, once

A model is a catalogue name, a source or a path, as for ``trimaran pull``, or a ``config.json`` that lies by itself.
Docs: ``docs/kv-cache.md``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from trimaran.base.errors import ConfigError
from trimaran.base.formats import KVFormat
from trimaran.calibration.kv_ranges import default_path, measure_ranges, write_ranges
from trimaran.checkpoint import open_checkpoint
from trimaran.checkpoint.sources import resolve
from trimaran.engine.window import most_pages
from trimaran.kernels.program import Program
from trimaran.kernels.wide_layers import keep_wide
from trimaran.models.registry import build_program, read_config, read_config_file
from trimaran.text.tokenizer import open_tokenizer

__all__ = ["FORMATS", "Capacity", "KVFormat", "calibrate", "capacity", "token_bytes"]

FORMATS = tuple(KVFormat)
MOST_TOKENS = 2048  # of each text that calibrates
_STEP = 512  # rows of a step, which a window's pages must have room for too


@dataclass(frozen=True)
class Capacity:
    """What an amount of memory holds: ``tokens`` of sequences with ``context`` tokens each, ``sequences`` of them
    whole, in pages of ``page_size`` tokens. ``sequence_bytes`` is what one takes."""

    tokens: int
    sequences: int
    context: int
    page_size: int
    sequence_bytes: int


def token_bytes(
    model: str, fmt: str | KVFormat, *, skip_layers: Sequence[int | str] = (), offline: bool = False
) -> int:
    """Bytes that a token's cache takes in all layers, scales included; ``skip_layers`` stay bf16.

    Of layers with a sliding window only the tokens in the window take them. Raises ``ConfigError`` for a format or a
    layer that the model cannot have.
    """
    program = keep_wide(_program(model, offline), skip_layers)
    return sum(group.page_bytes(_format(fmt), 1) for group in program.groups)


def capacity(
    model: str,
    memory_bytes: int,
    fmt: str | KVFormat,
    *,
    context: int | None = None,
    page_size: int = 16,
    skip_layers: Sequence[int | str] = (),
    offline: bool = False,
) -> Capacity:
    """How many tokens ``memory_bytes`` hold, in sequences of ``context`` tokens (default: the model's longest).

    A layer with a sliding window holds its window and a step's rows of each sequence. Raises as ``token_bytes`` does.
    """
    program = keep_wide(_program(model, offline), skip_layers)
    tokens = context or program.context
    if not 1 <= tokens <= program.context:
        raise ConfigError(f"context must lie between 1 and the model's {program.context}, not {tokens}")
    if page_size < 16 or page_size % 16:
        raise ConfigError(f"page_size must be a multiple of 16, not {page_size}")
    size = 0
    for group in program.groups:
        pages = most_pages(tokens, _STEP, group.window, page_size)
        size += pages * group.page_bytes(_format(fmt), page_size)
    return Capacity(
        tokens=memory_bytes * tokens // size,
        sequences=memory_bytes // size,
        context=tokens,
        page_size=page_size,
        sequence_bytes=size,
    )


def calibrate(
    model: str, texts: Sequence[str] | None = None, out: str | Path | None = None, *, offline: bool = False
) -> Path:
    """Measures what static formats need, over ``texts`` (default: one that comes along; of each its first
    ``MOST_TOKENS`` tokens), and returns the file it wrote: ``out``, or the model's own in the cache.

    Raises ``UnsupportedError`` for models whose cache has no static format, ``ConfigError`` when there is no text or
    the file cannot be written.
    """
    with open_checkpoint(resolve(model, offline=offline).path) as checkpoint:
        tokenizer = open_tokenizer(checkpoint)
        most = min(MOST_TOKENS, read_config(checkpoint).context)
        ids = [tokenizer.encode(text)[:most] for text in (texts or [default_text()])]
        if not all(ids):
            raise ConfigError("a text that is to calibrate is empty")
        ranges = measure_ranges(checkpoint, ids)
        path = default_path(checkpoint.sampled) if out is None else Path(out)
    write_ranges(path, ranges)
    return path


def default_text() -> str:
    """Prose, code, tables and dialogue, written for this purpose."""
    return resources.files("trimaran.calibration").joinpath("text.txt").read_text("utf-8")


def _format(fmt: str | KVFormat) -> KVFormat:
    try:
        return KVFormat(fmt)
    except ValueError:
        raise ConfigError(f"{fmt!r} is no KV format; choose one of {', '.join(KVFormat)}") from None


def _program(model: str, offline: bool) -> Program:
    path = Path(model)
    if path.suffix == ".json" and path.is_file():
        return build_program(read_config_file(path))
    with open_checkpoint(resolve(model, offline=offline).path) as checkpoint:
        return build_program(read_config(checkpoint))
