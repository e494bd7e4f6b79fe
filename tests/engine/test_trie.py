"""Ids as a trie of tokens: what it allows is what a plain look at all ids says."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trimaran.engine.constraints import trie
from trimaran.engine.constraints.protocol import Vocabulary
from trimaran.engine.constraints.trie import TokenTrie

VOCAB = 70
VOCABULARY = Vocabulary([b"x"] * VOCAB, frozenset({0}))


def allowed(mask: np.ndarray) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())


ids = st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=3, max_size=3).map(tuple), min_size=1, max_size=300)


@given(ids, st.sampled_from([0, 2, 64]), st.integers(0, 2**32))
def test_walks_of_many_at_once(sequences, crowd, seed):
    rng = np.random.default_rng(seed)
    before, trie.CROWD = trie.CROWD, crowd  # masks made beforehand for all, some or no nodes
    try:
        constraint = TokenTrie(VOCABULARY, sequences)
    finally:
        trie.CROWD = before
    wanted = [sequences[i] for i in rng.integers(len(sequences), size=5)]
    states: list[int | None] = [constraint.start([], None) for _ in wanted]
    for depth in range(3):
        assert None not in states
        masks = constraint.mask([state for state in states if state is not None])
        assert masks.shape == (5, VOCABULARY.words)
        for mask, sequence in zip(masks, wanted, strict=True):
            assert allowed(mask) == {each[depth] for each in sequences if each[:depth] == sequence[:depth]}
        states = constraint.advance([state for state in states if state is not None], [s[depth] for s in wanted])
    assert states == [None] * 5
