"""Fills the shards: pieces of some rows, each made and written by one of a few threads."""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from trimaran.base.errors import CheckpointError
from trimaran.checkpoint import Checkpoint
from trimaran.compress.plan import RELEASE, Item, Report
from trimaran.compress.recipe import Output, Recipe
from trimaran.compress.shards import Shards
from trimaran.quant.stored import Plain, Stored, matrix_shape

Progress = Callable[[int, int | None], None]  # bytes written, and in all

_PIECE = 1 << 17  # values that one thread works on: they stay in its cache
_THREADS = 8  # at most: each holds some 20 MB


def fill(
    checkpoint: Checkpoint,
    items: Sequence[Item],
    recipe: Recipe,
    shards: Shards,
    done: Report,
    report: Progress,
    written: int = 0,
) -> None:
    """Writes what ``items`` become and adds the errors of rounding to ``done``; raises as ``compress`` does.

    ``written`` bytes of all that is reported are there before.
    """
    threads = min(_THREADS, os.cpu_count() or 1)
    waiting: deque[Future[_Written]] = deque()
    since = 0
    report(written, done.bytes_after)
    with ThreadPoolExecutor(threads) as pool:
        try:
            for work in _pieces(items, recipe, shards):
                waiting.append(pool.submit(work))
                if len(waiting) <= threads:
                    continue
                piece = waiting.popleft().result()
                _count(done, piece)
                written, since = written + piece.bytes, since + piece.source_bytes
                report(written, done.bytes_after)
                if since > RELEASE:
                    checkpoint.release()
                    since = 0
            for last in waiting:
                piece = last.result()
                _count(done, piece)
                written += piece.bytes
                report(written, done.bytes_after)
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


@dataclass(frozen=True)
class _Written:
    bytes: int
    source_bytes: int
    error: float = 0.0
    plain_error: float = 0.0
    norm: float = 0.0


def _count(done: Report, piece: _Written) -> None:
    done.error += piece.error
    done.plain_error += piece.plain_error
    done.norm += piece.norm


def _pieces(items: Sequence[Item], recipe: Recipe, shards: Shards) -> Iterator[Callable[[], _Written]]:
    """What to do, in order; each call does one piece."""
    for item in items:
        stored = item.tensor.open()
        rows, cols = matrix_shape(item.shape)
        multiple = recipe.rows if item.kept is None else 1
        step = max(1, _PIECE // max(1, cols) // multiple) * multiple
        if item.kept is None:
            made = item.outputs[: len(item.outputs) - len(constants := recipe.constants(rows, cols))]
            for output, array in zip(item.outputs[len(made) :], constants, strict=True):
                shards.write(output, 0, array)
        for at in range(0, rows, step):
            piece = slice(at, min(at + step, rows))
            if item.kept is None:
                yield partial(_encode, stored, made, piece, recipe, shards)
            else:
                yield partial(_keep, stored, item.outputs[0], piece, shards)


def _encode(stored: Stored, outputs: Sequence[Output], rows: slice, recipe: Recipe, shards: Shards) -> _Written:
    values = stored.values(rows)
    if not np.isfinite(values).all():
        raise CheckpointError(f"tensor {stored.name} holds numbers that are not finite, which cannot be compressed")
    piece = recipe.encode(values)
    for output, array in zip(outputs, piece.arrays, strict=True):
        shards.write(output, rows.start // output.per, array)
    norm = float(np.square(values).sum(dtype=np.float64))
    size = sum(array.nbytes for array in piece.arrays)
    return _Written(size, values.size * 2, piece.error, piece.plain_error, norm)


def _keep(stored: Stored, output: Output, rows: slice, shards: Shards) -> _Written:
    if isinstance(stored, Plain):
        array: Any = stored.tensor.data[rows]
    else:
        array = stored.values(rows).astype(output.fmt.dtype)
    shards.write(output, rows.start, array)
    return _Written(array.nbytes, array.nbytes)
