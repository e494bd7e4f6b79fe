"""Whatever happens on the way, a sequence is admitted with the right bytes or not at all, and pages are released."""

from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimaran.base.errors import TransferError
from trimaran.pools.arrivals import Arrivals
from trimaran.pools.receiving import Admit, Again, Refusal, State
from trimaran.pools.sending import Sending
from trimaran.pools.ticket import TicketPages
from trimaran.pools.transfer import Abort, Commit, Frame, PageFrame, Refused, Taken

from .transfers import EPOCH, FIRST, LEASE, PAGE_BYTES, Receiver, frames, sending, ticket, whole

Sent = list[tuple[Frame, np.ndarray | None]]
LATER = LEASE + 1.0


def started(tokens: int = 70, cached: int = 0) -> tuple[Receiver, Sending, Sent]:
    of = ticket(tokens, cached)
    receiver = Receiver()
    receiver.expect(of)
    machine = sending(of)
    return receiver, machine, whole(machine)


@given(st.integers(1, 200), st.integers(0, 4))
def test_what_was_sent_is_what_is_admitted(tokens: int, cached: int) -> None:
    receiver, machine, sent = started(tokens, min(cached, (tokens - 1) // 16))
    for frame, data in sent:
        receiver.take(frame, data)
    (admitted,) = receiver.admitted
    assert admitted.commit.tokens == FIRST
    assert receiver.right(machine.ticket)
    machine.answer(admitted.answer)
    assert machine.state is State.TAKEN
    assert len(receiver.arrivals) == 0


def _flip(frame: Frame, data: np.ndarray | None, at: int) -> tuple[Frame, np.ndarray | None]:
    """One bit, in the bytes if there are any, else in the digest."""
    if isinstance(frame, Commit):
        digest = bytearray(frame.digest)
        digest[at % 32] ^= 1 << at % 8
        return msgspec.structs.replace(frame, digest=bytes(digest)), data
    if data is None:  # an abort, which another fault has put there
        return frame, data
    data = data.copy()
    data[at % len(data)] ^= 1 << at % 8
    return frame, data


FAULTS: dict[str, Callable[[Sent, int, int], Sent]] = {
    "drop": lambda sent, i, _: sent[:i] + sent[i + 1 :],
    "reorder": lambda sent, i, j: _swapped(sent, i, j),
    "duplicate": lambda sent, i, j: _inserted(sent, i, j),
    "corrupt": lambda sent, i, j: [*sent[:i], _flip(*sent[i], j), *sent[i + 1 :]],
    "stale": lambda sent, i, _: [*sent[:i], (msgspec.structs.replace(sent[i][0], epoch=EPOCH + 1), sent[i][1])],
    "stranger": lambda sent, i, _: [*sent[:i], (msgspec.structs.replace(sent[i][0], transfer="two"), sent[i][1])],
    "abort": lambda sent, i, _: [*sent[:i], (Abort("one", EPOCH, "cancelled", "enough"), None), *sent[i:]],
    "truncate": lambda sent, i, _: sent[:i],
}


def _swapped(sent: Sent, i: int, j: int) -> Sent:
    sent = list(sent)
    j %= len(sent)
    sent[i], sent[j] = sent[j], sent[i]
    return sent


def _inserted(sent: Sent, i: int, j: int) -> Sent:
    j %= len(sent) + 1
    return [*sent[:j], sent[i], *sent[j:]]


@given(
    st.integers(1, 200),
    st.lists(st.tuples(st.sampled_from(sorted(FAULTS)), st.integers(0, 99), st.integers(0, 999)), max_size=4),
    st.integers(0, 30),
)
def test_no_fault_on_the_way_admits_wrongly_or_leaves_anything(
    tokens: int, faults: list[tuple[str, int, int]], late: int
) -> None:
    """The channel does what it likes; from message ``late`` on, the lease is over."""
    receiver, machine, sent = started(tokens)
    clean = list(sent)
    for name, i, j in faults:
        if sent:
            sent = FAULTS[name](sent, i % len(sent), j)
    for number, (frame, data) in enumerate(sent):
        outcome = receiver.take(frame, data, LATER if number >= late else 0.0)
        if isinstance(outcome, Admit | Again | Refusal):
            machine.answer(outcome.answer)
    assert len(receiver.admitted) <= 1
    if receiver.admitted:
        assert receiver.right(machine.ticket)
        assert not receiver.released
    elif not faults and late >= len(sent):
        pytest.fail(f"{clean} should have been admitted")
    receiver.released += [refused.transfer for refused, _ in receiver.arrivals.expire(LATER)]
    machine.expire(LATER)
    assert machine.over, "never stuck beyond the deadline"
    assert len(receiver.arrivals) == 0
    assert len(receiver.admitted) + len(receiver.released) == 1, "the pages have one owner or none, exactly once"
    if machine.state is State.TAKEN:
        assert receiver.admitted


def _one_refused(change: Callable[[Receiver, Sent], Sent], now: float = 0.0) -> Refused:
    receiver, machine, sent = started()
    first: Refused | None = None
    for frame, data in change(receiver, sent):
        outcome = receiver.take(frame, data, now)
        if isinstance(outcome, Refusal):
            machine.answer(outcome.answer)
            first = first or outcome.answer
    assert not receiver.admitted
    assert first is not None
    return first


def _changed(at: int, **fields: object) -> Callable[[Receiver, Sent], Sent]:
    def change(_: Receiver, sent: Sent) -> Sent:
        frame, data = sent[at]
        sent[at] = (msgspec.structs.replace(frame, **fields), data)
        return sent

    return change


def _tag_changed(receiver: Receiver, sent: Sent) -> Sent:
    receiver.tags[1, 11] += 1
    return sent


def _short(_: Receiver, sent: Sent) -> Sent:
    frame, data = sent[0]
    assert data is not None
    return [(frame, data[:-1]), *sent[1:]]


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (_changed(0, transfer="two"), "unknown"),
        (_changed(0, epoch=EPOCH + 1), "epoch"),
        (_changed(0, number=1), "order"),
        (_changed(0, first=1), "range"),
        (_changed(0, count=0), "range"),
        (_changed(0, count=400), "range"),
        (_changed(0, group=2), "range"),
        (_changed(0, group=1), "range"),
        (_changed(0, checksum=1), "checksum"),
        (_short, "range"),
        (_tag_changed, "pages"),
        (_changed(-1, number=1), "order"),
        (_changed(-1, number=9), "order"),
        (_changed(-1, pages=(5, 2)), "commit"),
        (_changed(-1, digest=bytes(32)), "commit"),
        (_changed(-1, ticket=bytes(32)), "ticket"),
    ],
)
def test_each_refusal_has_its_cause(change: Callable[[Receiver, Sent], Sent], cause: str) -> None:
    assert _one_refused(change).cause == cause


def test_what_comes_after_the_lease_is_refused() -> None:
    refused = _one_refused(lambda _, sent: sent, now=LEASE)
    assert (refused.cause, refused.text) == ("expired", "its lease of 5 s is over")


def test_a_page_that_changes_hands_after_it_came_is_seen_by_the_commit() -> None:
    receiver, _, sent = started()
    for frame, data in sent[:-1]:
        receiver.take(frame, data)
    receiver.tags[0, 1] += 1
    outcome = receiver.take(*sent[-1])
    assert isinstance(outcome, Refusal)
    assert outcome.answer.cause == "pages"


def test_a_commit_that_comes_again_is_answered_as_it_was() -> None:
    receiver, _, sent = started()
    for frame, data in [*sent, *sent]:
        outcome = receiver.take(frame, data)
    assert outcome == Again(Taken("one", EPOCH))
    assert len(receiver.admitted) == 1
    assert receiver.arrivals.abort("one", "cancelled", "x") is None, "it is the engine's now"


@pytest.mark.parametrize("stage", range(4))
def test_the_receiver_may_give_up_at_any_stage(stage: int) -> None:
    receiver, machine, sent = started()
    assert len(sent) == 3
    for frame, data in sent[:stage]:
        receiver.take(frame, data)
    refused = receiver.arrivals.abort("one", "cancelled", "the client has gone")
    if stage == 3:
        assert refused is None
        return
    assert refused is not None
    machine.answer(refused)
    assert (machine.over, machine.cause) == (True, "cancelled")
    for frame, data in sent[stage:]:
        assert receiver.take(frame, data) == Refusal(refused, ended=False)
    assert len(receiver.arrivals) == 0


def test_a_broken_link_fails_what_came_over_it_and_nothing_else() -> None:
    receiver = Receiver()
    tickets = [_other(name, 20 * i) for i, name in enumerate(("one", "two", "three"))]
    for of, link in zip(tickets, ("a", "b", None), strict=True):
        receiver.expect(of)
        if link is not None:
            receiver.take(*frames(sending(of))[0], link=link)
    (refused,) = receiver.arrivals.broke("a", "connection reset")
    assert (refused.transfer, refused.cause, refused.text) == ("one", "link", "connection reset")
    assert len(receiver.arrivals) == 2
    assert [link for _, link in receiver.arrivals.expire(LATER)] == ["b", None]


def test_a_transfer_is_of_the_link_that_it_began_on() -> None:
    receiver, _, sent = started()
    receiver.take(*sent[0], link="a")
    outcome = receiver.take(*sent[1], link="b")
    assert isinstance(outcome, Refusal)
    assert (outcome.answer.cause, outcome.ended) == ("unknown", False)
    for frame, data in sent[1:]:
        receiver.take(frame, data, link="a")
    assert receiver.admitted, "a stranger cannot end it"


def test_what_may_be_open_is_bounded_and_ids_are_used_once() -> None:
    arrivals = Arrivals(EPOCH, PAGE_BYTES, lambda *_: True, limit=2)
    arrivals.expect(ticket(transfer="a"), 0.0)
    arrivals.expect(ticket(transfer="b", lease=1.0), 0.0)
    assert arrivals.next_deadline() == 1.0
    with pytest.raises(TransferError, match="2 transfers are open"):
        arrivals.expect(ticket(transfer="c"), 0.0)
    arrivals.expire(1.0)
    with pytest.raises(TransferError, match="known already"):
        arrivals.expect(ticket(transfer="b"), 0.0)
    arrivals.expect(ticket(transfer="c"), 0.0)


def test_ended_transfers_are_forgotten_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trimaran.pools.arrivals.REMEMBERED", 2)
    receiver = Receiver()
    for i in range(4):
        of = _other(str(i), 20 * i)
        receiver.expect(of)
        for frame, data in whole(sending(of)):
            receiver.take(frame, data)
    causes = []
    for i in range(4):
        outcome = receiver.take(Abort(str(i), EPOCH, "cancelled", ""), None)
        causes.append(outcome.answer.cause if isinstance(outcome, Refusal) else None)
    assert causes == ["unknown", "unknown", None, None]


def test_frames_that_are_no_pages_have_no_bytes() -> None:
    receiver, _, sent = started()
    frame, _ = sent[0]
    assert isinstance(frame, PageFrame)
    outcome = receiver.take(frame, None)
    assert isinstance(outcome, Refusal)
    assert outcome.answer.cause == "range"


def _other(name: str, shift: int):
    of = ticket(transfer=name)
    groups = [TicketPages(group.first, [page + shift for page in group.pages], group.tags) for group in of.groups]
    return msgspec.structs.replace(of, groups=groups)
