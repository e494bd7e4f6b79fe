from hypothesis import given
from hypothesis import strategies as st

from trimaran.checkpoint.spans import Spans

pairs = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12)


@given(pairs, st.integers(0, 70))
def test_spans_are_what_a_set_of_numbers_is(added: list[tuple[int, int]], total: int) -> None:
    spans, there = Spans(), set[int]()
    for start, end in added:
        spans.add(start, end)
        there |= set(range(start, end))
    assert spans.size == len(there)
    assert {n for start, end in spans.as_list() for n in range(start, end)} == there
    assert {n for start, end in spans.gaps(total) for n in range(start, end)} == set(range(total)) - there
    assert spans.within(total).size == len({n for n in there if n < total})
    assert spans.prefix == next(n for n in range(100) if n not in there)
    ends = [end for span in spans.as_list() for end in span]
    assert ends == sorted(set(ends)), "spans that touch are one"
