"""Pages that several sequences of a step share are read once for all of them: the same bits as one by one."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimaran.base.formats import KVFormat
from trimaran.kernels.native import NativeExecutor
from trimaran.kernels.reference import ReferenceExecutor

from .scales import in_format
from .single_op import Part
from .test_native_attention import OPTIONS, attend, attention, isa, tokens

__all__ = ["isa"]
BLOCK = 128  # tokens that attention reduces on their own
SHAPE = (9, 3, 64, 64)


class Tree:
    """Sequences that begin alike and part: each continues another one from some page on."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.sequences: list[tuple[list[int], list[int]]] = []  # tokens of the past, pages
        self.pages = 1  # handed out, with the null page

    def grow(self, parent: int, shared: int, own: int) -> None:
        """A sequence with the first ``shared`` tokens of sequence ``parent`` (whole pages) and ``own`` more."""
        past, pages = self.sequences[parent] if self.sequences else ([], [])
        shared = min(shared, len(past)) // self.page_size
        text = past[: shared * self.page_size] + tokens(own, seed=len(self.sequences))
        count = len(text) // self.page_size + 2 - shared  # room for the step's tokens
        fresh = range(self.pages, self.pages + count)
        self.pages += count
        self.sequences.append((text, [*pages[:shared], *fresh]))


def run(tree: Tree, new: Sequence[int], executors: Sequence[NativeExecutor | ReferenceExecutor]) -> list[np.ndarray]:
    """What each executor says of a step in which sequence ``i`` has ``new[i]`` tokens, once the past is computed."""
    parts = [
        Part(tokens(n, i), len(past), pages)
        for i, (n, (past, pages)) in enumerate(zip(new, tree.sequences, strict=True))
    ]
    ends = (np.cumsum(new) - 1).tolist()
    found = []
    for executor in executors:
        for past, pages in tree.sequences:
            for start in range(0, len(past), 256):
                attend(executor, Part(past[start : start + 256], start, pages))
        found.append(attend(executor, *parts, rows=ends))
    return found


def crowd() -> tuple[Tree, list[int]]:
    """Ten sequences behind 300 tokens, some with more in common, and one with none; how many tokens each has new."""
    tree = Tree(16)
    tree.grow(0, 0, 460)
    for i in range(9):
        tree.grow(i // 3, 300 + 70 * (i % 3), 5 + 31 * i)
    tree.grow(0, 0, 140)
    return tree, [1] * 9 + [2, 1]


@cache
def defined(kv_format: KVFormat) -> np.ndarray:
    made, weights = attention(*SHAPE)
    options = replace(in_format(OPTIONS, kv_format, made), num_pages=160)
    (out,) = run(*crowd(), [ReferenceExecutor(made, weights, options)])
    return out


@pytest.mark.parametrize("kv_format", list(KVFormat))
def test_sharers_get_the_bits_that_each_gets_alone(isa: str, kv_format: KVFormat) -> None:
    made = attention(*SHAPE)
    options = replace(in_format(OPTIONS, kv_format, made[0]), num_pages=160)
    ways = [replace(options, share_prefixes=False), *(replace(options, threads=threads) for threads in (1, 2))]
    alone, *together = run(*crowd(), [NativeExecutor(*made, way) for way in ways])
    for out in together:
        assert out.tobytes() == alone.tobytes()
    error = np.abs(alone - defined(kv_format))
    assert error.max() < (0.02 if kv_format.integer or kv_format.value.startswith("fp8") else 1e-4)


@st.composite
def trees(draw: st.DrawFn) -> tuple[Tree, list[int]]:
    tree = Tree(draw(st.sampled_from([16, 32, 128, 256])))
    for i in range(draw(st.integers(2, 12))):
        tree.grow(draw(st.integers(0, max(0, i - 1))), draw(st.integers(0, 3 * BLOCK)), draw(st.integers(1, 2 * BLOCK)))
    return tree, draw(st.lists(st.integers(1, 9), min_size=len(tree.sequences), max_size=len(tree.sequences)))


@given(trees(), st.sampled_from(list(KVFormat)), st.sampled_from([SHAPE, (16, 1, 64, 64), (4, 4, 16, 16)]))
@settings(max_examples=25, deadline=None)
def test_any_pattern_of_sharing_makes_the_same_bits(
    made: tuple[Tree, list[int]], kv_format: KVFormat, shape: tuple[int, int, int, int]
) -> None:
    tree, new = made
    program, weights = attention(*shape)
    options = replace(in_format(OPTIONS, kv_format, program), page_size=tree.page_size, num_pages=tree.pages)
    together, alone = run(
        tree,
        new,
        [NativeExecutor(program, weights, replace(options, share_prefixes=share)) for share in (True, False)],
    )
    assert together.tobytes() == alone.tobytes()
