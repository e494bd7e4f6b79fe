"""What is sent when, and what tickets a sender turns down."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimaran.base.errors import TransferError
from trimaran.base.formats import KVFormat
from trimaran.kernels import handoff
from trimaran.pools.layout import layout_data
from trimaran.pools.receiving import State
from trimaran.pools.sending import Sending
from trimaran.pools.ticket import TicketPages, digest_of_tokens
from trimaran.pools.transfer import PageFrame, Refused, Taken

from .transfers import EPOCH, FIRST, LAYOUT, LEASE, MODEL, PAGE, PAGE_BYTES, frames, prompt, sending, ticket

STEPS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 3 * max(PAGE_BYTES))), max_size=12)


@given(st.integers(1, 200), st.integers(0, 12), STEPS)
def test_pages_go_once_they_are_full_and_the_last_when_all_is_computed(
    tokens: int, cached: int, steps: list[tuple[int, int]]
) -> None:
    of = ticket(tokens, min(cached, (tokens - 1) // PAGE))
    machine, computed = sending(of), 0
    sent: list[tuple[int, int]] = []
    for more, room in [*steps, (tokens, 1 << 30)]:
        computed = min(tokens, computed + more)
        while (batch := machine.due(computed, room)) is not None:
            assert batch.size == batch.count * PAGE_BYTES[batch.group] <= room
            assert (batch.first + batch.count) * PAGE <= computed or computed == tokens
            sent += [(batch.group, batch.first + i) for i in range(batch.count)]
            machine.frame(batch, np.zeros(batch.size, np.uint8))
            room -= batch.size
    assert machine.sent
    for group, wanted in enumerate(of.groups):
        assert [page for other, page in sent if other == group] == list(range(wanted.first, wanted.end))
    commit = machine.commit(FIRST)
    assert commit.pages == tuple(len(wanted.pages) for wanted in of.groups)


def test_batches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handoff, "BATCH_BYTES", 2 * PAGE_BYTES[0])
    counts = [frame.count for frame, _ in frames(sending(ticket(70))) if isinstance(frame, PageFrame)]
    assert counts == [2, 2, 1, 4], "five pages, and the four that the window reads, which are smaller"


def test_it_ends_once_and_says_why() -> None:
    of = ticket()
    machine = sending(of)
    machine.answer(Refused("another", EPOCH, "pages", "x"))
    machine.answer(Refused("one", EPOCH + 1, "pages", "x"))
    assert machine.state is State.OPEN, "not this transfer's"
    machine.answer(Refused("one", EPOCH, "pages", "a page is gone"))
    assert (machine.over, machine.cause) == (True, "pages")
    assert "a page is gone" in str(machine.failure)
    assert machine.abort("cancelled", "late") is None
    assert machine.due(of.tokens, 1 << 20) is None
    machine.answer(Taken("one", EPOCH))
    assert machine.state is State.FAILED


def test_what_was_committed_waits_for_the_answer_and_no_longer_than_the_lease() -> None:
    machine = sending(ticket(), now=100.0)
    frames(machine)
    machine.commit(FIRST)
    assert machine.expire(100.0 + LEASE - 0.01) is None
    assert not machine.over, "its pages are still to be held"
    abort = machine.expire(100.0 + LEASE)
    assert abort is not None
    assert (abort.cause, machine.over) == ("expired", True)


def test_taken_before_the_commit_is_a_failure() -> None:
    machine = sending(ticket())
    machine.answer(Taken("one", EPOCH))
    assert (machine.state, machine.cause) == (State.FAILED, "order")


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"model": "sha256:other"}, "sha256:other.*sha256:model"),
        ({"token_digest": digest_of_tokens(prompt(69))}, "another prompt"),
        ({"tokens": 71}, "another prompt"),
        ({"tokens": 60}, "another prompt"),
        ({"layout": layout_data(replace(LAYOUT, executor="native"))}, "executor.*reference.*native"),
        ({"layout": layout_data(replace(LAYOUT, version=99))}, "version"),
        ({"layout": layout_data(replace(LAYOUT, page_size=32))}, "page size: 16 .*, 32"),
        ({"layout": layout_data(replace(LAYOUT, groups=LAYOUT.groups[:1]))}, "groups"),
        ({"layout": layout_data(LAYOUT) | {"page_format": "int3"}}, "int3"),
        ({"layout": layout_data(LAYOUT) | {"sparkle": 1}}, "sparkle: nothing .*, 1"),
        ({"groups": ticket().groups[:1]}, "1 cache groups, this model 2"),
        ({"groups": [ticket().groups[0], TicketPages(0, [1, 2, 3, 4, 5], [1] * 5)]}, "group 1"),
        ({"groups": [TicketPages(0, [1, 2, 3, 4], [1] * 4), ticket().groups[1]]}, "group 0"),
    ],
)
def test_a_ticket_for_something_else_is_turned_down(changes: dict[str, object], what: str) -> None:
    of = msgspec.structs.replace(ticket(), **changes)
    with pytest.raises(TransferError, match=what):
        Sending(of, LAYOUT, MODEL, prompt(70), 0.0)


def test_a_ticket_for_more_pages_than_the_prompt_has_is_turned_down() -> None:
    of = msgspec.structs.replace(ticket(60), groups=ticket(70).groups)
    with pytest.raises(TransferError, match="asks for pages 0 to 4"):
        Sending(of, LAYOUT, MODEL, prompt(60), 0.0)


def test_formats_may_differ_but_scales_of_the_receivers_format_may_not() -> None:
    static = KVFormat.INT8_STATIC
    mine = replace(LAYOUT, scales=((static, "a"), (KVFormat.FP8_STATIC, "b")))
    theirs = replace(mine.converted(static), scales=((static, "a"),))
    Sending(ticket(layout=layout_data(theirs)), mine, MODEL, prompt(70), 0.0)
    theirs = replace(theirs, scales=((static, "c"),))
    with pytest.raises(TransferError, match=r"scales: a .*, c"):
        Sending(ticket(layout=layout_data(theirs)), mine, MODEL, prompt(70), 0.0)
