import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimaran.engine.window import first_page, most_pages, passed_at

windows = st.integers(1, 200)
sizes = st.sampled_from([16, 32])


@given(st.integers(0, 1000), windows, sizes)
def test_the_first_page_holds_the_first_token_that_is_seen(position, window, size):
    seen = [token for token in range(position + 1) if position - window < token]
    assert first_page(position, window, size) == seen[0] // size
    assert first_page(position, None, size) == 0


@given(st.integers(0, 20), windows, sizes)
def test_a_page_is_passed_by_the_first_position_that_does_not_read_it(index, window, size):
    at = passed_at(index, window, size)
    assert first_page(at - 1, window, size) <= index < first_page(at, window, size)


@given(st.integers(1, 64), windows, sizes)
def test_no_step_needs_more_pages_than_the_most_and_one_needs_as_many(rows, window, size):
    context = 500
    needs = [-(-min(first + rows, context) // size) - first_page(first, window, size) for first in range(context)]
    assert max(needs) == most_pages(context, rows, window, size)


@pytest.mark.parametrize(("context", "pages"), [(1, 1), (16, 1), (17, 2), (1000, 63)])
def test_without_a_window_all_pages_are_needed(context, pages):
    assert most_pages(context, 64, None, 16) == pages
