"""Answers that are one of many ids, such as the items of a shop: a ``TokenConstraint`` over a trie.

A package offers its ids to servers by an entry point of the group ``trimaran.constraints``, a function that takes a
``Vocabulary`` and returns ``TokenTrie(vocabulary, sequences)``.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from trimaran.engine.constraints.protocol import Vocabulary

UInt32 = npt.NDArray[np.uint32]
Int64 = npt.NDArray[np.int64]
CROWD = 64  # a node with more children has its mask made beforehand


class TokenTrie:
    """Sequences of tokens, as a tree whose nodes are numbers: 0 is the root, and the state of a request is its node.

    An edge is ``node * vocabulary + token`` in one sorted array, so that a step of all requests is one search.
    """

    def __init__(self, vocabulary: Vocabulary, sequences: Iterable[Sequence[int]]) -> None:
        """``sequences`` are of any lengths; none is the beginning of another."""
        self._size = len(vocabulary.tokens)
        self._words = vocabulary.words
        edges: dict[int, int] = {}
        self._leaves: set[int] = set()
        nodes = 1
        for sequence in sequences:
            node = 0
            for token in sequence:
                child = edges.setdefault(node * self._size + token, nodes)
                nodes = max(nodes, child + 1)
                node = child
            self._leaves.add(node)
        self._edges: Int64 = np.array(sorted(edges), np.int64)
        self._children = np.array([edges[edge] for edge in self._edges.tolist()], np.int64)
        parents, self._tokens = np.divmod(self._edges, self._size)
        self._ends = np.searchsorted(parents, np.arange(nodes), side="right")
        self._begins = np.searchsorted(parents, np.arange(nodes))
        crowded = np.flatnonzero(self._ends - self._begins > CROWD)
        self._places = np.full(nodes, -1)
        self._places[crowded] = np.arange(len(crowded))
        self._ready = np.concatenate([self._bits(crowded), np.zeros((1, self._words), np.uint32)])

    def start(self, prompt: Sequence[int], argument: Any) -> int:  # noqa: ARG002  # the same for every prompt
        """The root."""
        if argument is not None:
            raise ValueError("this constraint takes no argument")
        return 0

    def advance(self, states: Sequence[int], tokens: Sequence[int]) -> list[int | None]:
        """Each node's child."""
        wanted = np.array(states, np.int64) * self._size + np.array(tokens, np.int64)
        children = self._children[np.searchsorted(self._edges, wanted)].tolist()
        return [None if child in self._leaves else child for child in children]

    def mask(self, states: Sequence[int]) -> UInt32:
        """The tokens on each node's edges."""
        nodes = np.array(states, np.int64)
        places = self._places[nodes]
        masks = self._bits(np.where(places < 0, nodes, -1))
        crowded = places >= 0
        if crowded.any():
            masks[crowded] = self._ready[places[crowded]]
        return masks

    def _bits(self, nodes: Int64) -> UInt32:
        """Masks of these nodes; empty where one is negative."""
        masks = np.zeros((len(nodes), self._words), np.uint32)
        counts = np.where(nodes < 0, 0, self._ends[nodes] - self._begins[nodes])
        rows = np.repeat(np.arange(len(nodes)), counts)
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        tokens = self._tokens[self._begins[nodes][rows] + within]
        np.bitwise_or.at(masks, (rows, tokens // 32), np.uint32(1) << (tokens % 32).astype(np.uint32))
        return masks
