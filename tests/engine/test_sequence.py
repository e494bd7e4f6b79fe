import pytest

from trimaran.base.sampling import SamplingParams
from trimaran.engine.sequence import Sequence


def test_counters_keep_their_order():
    sequence = Sequence("s", [1, 2, 3], SamplingParams())
    assert (sequence.sealed, sequence.computed, sequence.total) == (0, 0, 3)
    sequence.advance(2)
    with pytest.raises(AssertionError):
        sequence.append(4)
    sequence.advance(1)
    sequence.append(4)
    assert (sequence.computed, sequence.total, sequence.output_length) == (3, 4, 1)
    with pytest.raises(AssertionError):
        sequence.advance(2)


def test_rank_is_priority_then_arrival():
    ranks = [(1, 0), (0, 2), (0, 1)]
    sequences = [Sequence("s", [1], SamplingParams(), priority=p, arrival=a) for p, a in ranks]
    assert [s.rank for s in sorted(sequences, key=lambda s: s.rank)] == [(0, 1), (0, 2), (1, 0)]
