"""Which pages of a cache group a sequence needs. Without a window (``None``): all of them.

The token at position p reads positions ``p - window < j <= p``, so pages before that are of no more use to a sequence
whose next token is p.
"""


def pages_of(tokens: int, page_size: int) -> int:
    """Pages that the first ``tokens`` tokens of a sequence fill or begin."""
    return -(-tokens // page_size)


def first_page(position: int, window: int | None, page_size: int) -> int:
    """Index of the first page that the token at ``position`` reads."""
    return 0 if window is None else max(0, position - window + 1) // page_size


def passed_at(index: int, window: int, page_size: int) -> int:
    """The first position whose window begins after page ``index``."""
    return (index + 1) * page_size + window - 1


def most_pages(context: int, rows: int, window: int | None, page_size: int) -> int:
    """Most pages that a sequence of up to ``context`` tokens needs at once, when a step has up to ``rows`` of them.

    A step's rows and the window before the first of them are neighbours; they may begin anywhere in a page.
    """
    whole = pages_of(context, page_size)
    return whole if window is None else min(whole, pages_of(window + rows - 2, page_size) + 1)
