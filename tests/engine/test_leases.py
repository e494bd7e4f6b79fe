"""Pages under a lease stay where they are, whatever becomes of their sequence, and no longer than the lease."""

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from trimaran.base.errors import PageIntegrityError, TransferError
from trimaran.base.messages import Beat, Stop, Submit, ToEngine, Tokens
from trimaran.engine.engine import Engine
from trimaran.engine.faults import PageFaults
from trimaran.engine.group import PageGroup
from trimaran.engine.leases import Leases
from trimaran.engine.pages import PagePool, PageRef, PageState
from trimaran.engine.worker import Stopping, serve
from trimaran.kernels.null import NullModel
from trimaran.kernels.page_tags import PageTags, owner_number

from .caching import make_limits
from .driving import greedy, null_engine, run
from .test_worker import Script

PAGES = 6
LEASE = 10.0  # seconds

any_of = st.integers(0, 10**6)  # picks one of a list, whatever its length
keys = st.sampled_from([b"k1", b"k2", b"k3"])


@dataclass
class Held:
    """What the model knows of one reference: who wrote the page, and how the page should call its owner."""

    ref: PageRef
    owner: str | bytes


@dataclass
class Lease:
    held: list[Held]
    until: float


@dataclass
class Model:
    writing: list[Held] = field(default_factory=list)  # a sequence's own, one reference each
    sealed: list[Held] = field(default_factory=list)  # of any sequence, one entry for each reference
    leases: dict[str, Lease] = field(default_factory=dict)
    ended: list[PageRef] = field(default_factory=list)  # references that nobody has any more


class PagesUnderLease(RuleBasedStateMachine):
    """Pool, tags, owners and leases against a model that remembers who was given what and who keeps it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.marks = PageTags.of(PAGES + 1)  # what an executor looks at
        self.group = PageGroup(PagePool(PAGES, marks=self.marks), None, make_limits(context=64, seqs=1))
        self.pool = self.group.pool
        self.leases = Leases([self.group], clock=lambda: self.now)
        self.model = Model()
        self.names = 0

    # sequences

    @precondition(lambda self: self.pool.available)
    @rule(owner=st.sampled_from(["a", "b"]))
    def allocate(self, owner: str) -> None:
        ref = self.pool.allocate(owner)
        assert ref.page not in {held.ref.page for held in self.kept()}, "somebody has it"
        assert ref not in self.model.ended, "tags are never used twice"
        self.model.writing.append(Held(ref, owner))

    @precondition(lambda self: self.model.writing)
    @rule(which=any_of, key=keys)
    def seal(self, which: int, key: bytes) -> None:
        held = self.model.writing.pop(which % len(self.model.writing))
        self.pool.seal(held.ref, key)
        for lease in self.model.leases.values():
            for each in lease.held:
                if each.ref == held.ref:
                    each.owner = key
        self.model.sealed.append(Held(held.ref, key))

    @rule(key=keys)
    def find(self, key: bytes) -> None:
        if ref := self.pool.find(key):
            self.model.sealed.append(Held(ref, key))

    @rule(key=keys)
    def forget(self, key: bytes) -> None:
        self.pool.forget(key)

    @precondition(lambda self: self.model.writing or self.model.sealed)
    @rule(which=any_of)
    def end(self, which: int) -> None:
        """A sequence gives a page back: it finished, was cancelled or preempted."""
        both = [*self.model.writing, *self.model.sealed]
        held = both[which % len(both)]
        of = self.model.writing if which % len(both) < len(self.model.writing) else self.model.sealed
        of.remove(held)
        self.group.let_go(held.ref)
        self.note_end(held.ref)

    # leases

    @precondition(lambda self: self.model.writing or self.model.sealed)
    @rule(which=st.lists(any_of, min_size=1, max_size=3))
    def lease(self, which: list[int]) -> None:
        both = [*self.model.writing, *self.model.sealed]
        held = [both[i % len(both)] for i in which]
        name, self.names = str(self.names), self.names + 1
        self.leases.open(name, [[each.ref for each in held]], LEASE)
        self.model.leases[name] = Lease([Held(each.ref, each.owner) for each in held], self.now + LEASE)

    @precondition(lambda self: self.model.ended)
    @rule(which=any_of)
    def lease_what_is_gone(self, which: int) -> None:
        """A reference that nobody has is refused, also where its page belongs to somebody else by now."""
        before = list(self.leases.pages())
        with pytest.raises(PageIntegrityError, match="changed hands"):
            self.leases.open("late", [[self.model.ended[which % len(self.model.ended)]]], LEASE)
        assert list(self.leases.pages()) == before

    @precondition(lambda self: self.model.leases)
    @rule(which=any_of)
    def acknowledge(self, which: int) -> None:
        name = list(self.model.leases)[which % len(self.model.leases)]
        assert self.leases.close(name)
        assert not self.leases.close(name), "the second acknowledgement does nothing"
        self.end_lease(name)

    @rule(seconds=st.sampled_from([1.0, 4.0, LEASE]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        over = [name for name, lease in self.model.leases.items() if lease.until <= self.now]
        assert self.leases.expire(self.now) == over
        for name in over:
            self.end_lease(name)

    @precondition(lambda self: self.model.leases or self.model.sealed or self.model.writing)
    @rule(which=any_of)
    def doubt(self, which: int) -> None:
        """A page that someone has, a sequence or a lease alone, is not put out of use; how often is counted anew."""
        kept = self.kept()
        page = kept[which % len(kept)].ref.page
        held = [held.ref for held in (*self.model.writing, *self.model.sealed)]
        PageFaults([self.group]).quarantine({(0, page)}, [], [*((0, ref) for ref in held), *self.leases.pages()])
        assert self.pool.quarantined == 0

    # what holds at all times

    @invariant()
    def tags_and_owners(self) -> None:
        for held in self.kept():
            page, tag = held.ref
            assert (self.marks.tags[page], self.marks.owners[page]) == (tag, owner_number(held.owner))
            assert self.pool.owners[page] == held.owner
            assert self.pool.held(held.ref)

    @invariant()
    def counts(self) -> None:
        kept = Counter(held.ref for held in self.kept())
        for ref, count in kept.items():
            assert self.pool.references(ref.page) == count
        assert self.pool.available == PAGES - len({ref.page for ref in kept})
        assert len(self.leases) == len(self.model.leases)
        self.pool.check()

    @invariant()
    def writing_stays_writing(self) -> None:
        for held in self.kept():
            state = PageState.SEALED if isinstance(held.owner, bytes) else PageState.WRITING
            assert self.pool.state(held.ref.page) is state

    @invariant()
    def what_is_gone_is_seen(self) -> None:
        assert not any(self.pool.held(ref) for ref in self.model.ended)
        assert not self.group.lost

    def kept(self) -> list[Held]:
        """All references, of sequences and of leases."""
        leased = [held for lease in self.model.leases.values() for held in lease.held]
        return [*self.model.writing, *self.model.sealed, *leased]

    def end_lease(self, name: str) -> None:
        for held in self.model.leases.pop(name).held:
            self.note_end(held.ref)

    def note_end(self, ref: PageRef) -> None:
        if ref not in [held.ref for held in self.kept()] and self.pool.tags[ref.page] != ref.tag:
            self.model.ended.append(ref)


TestPagesUnderLease = PagesUnderLease.TestCase
TestPagesUnderLease.settings = settings(max_examples=80, stateful_step_count=40)


def pages(engine: Engine) -> list[list[PageRef]]:
    """Those of the only sequence."""
    [sequence] = engine.sequences
    return [list(held.refs) for held in sequence.pages]


def started(engine: Engine, prompt: int = 40) -> list[list[PageRef]]:
    """Runs a request's first steps; the pages that it has."""
    engine.submit(Submit("a", [5] * prompt, greedy(40)))
    engine.step()
    engine.step()
    return pages(engine)


@pytest.mark.parametrize("windows", [(None,), (None, 32)])
def test_a_cancelled_requests_pages_wait_for_the_acknowledgement(windows):
    engine = null_engine(null=NullModel(windows=windows))
    refs = started(engine)
    engine.leases.open("t", refs, 60)
    engine.cancel("a")
    pools = [group.pool for group in engine.cache.groups]
    assert [pool.total - pool.available for pool in pools] == [len(each) for each in refs]
    assert [pool.state(each[-1].page) for pool, each in zip(pools, refs, strict=True)] == [PageState.WRITING] * len(
        refs
    )
    assert not engine.cache.unused
    run(engine, Submit("b", [5] * 40, greedy(100)))
    assert engine.stats().leases == 1
    engine.leases.close("t")
    assert engine.cache.unused
    engine.cache.check()
    assert engine.stats().leases == engine.stats().leases_expired == 0


def test_a_lease_of_a_name_that_is_taken_is_refused():
    engine = null_engine()
    refs = started(engine)
    engine.leases.open("t", refs, 60)
    with pytest.raises(TransferError, match="open already"):
        engine.leases.open("t", refs, 60)
    assert len(engine.leases) == 1


def test_one_bad_reference_refuses_all_of_them():
    engine = null_engine()
    [refs] = started(engine)
    with pytest.raises(PageIntegrityError):
        engine.leases.open("t", [[*refs, PageRef(refs[0].page, refs[0].tag + 10**6)]], 60)
    engine.cancel("a")
    assert engine.cache.unused


class Idle(Script):
    """A host with nothing to say until the engine has told that a lease has ended."""

    asked = 0

    def receive(self, wait: float, others: object = ()) -> list[ToEngine]:
        self.asked += 1
        if any(isinstance(message, Beat) and message.leases_expired for message in self.sent):
            return [Stop(60)]
        assert self.asked < 10_000
        return []


def test_a_lease_ends_by_time_when_nothing_arrives():
    engine = null_engine()
    engine.leases.open("t", started(engine), 0.0)
    engine.cancel("a")
    assert not engine.cache.unused
    serve(engine, Idle(), Stopping())
    assert engine.cache.unused
    assert engine.stats().leases_expired == 1


def test_a_request_that_leased_pages_leave_no_room_for_waits():
    engine = null_engine(pages=16, max_num_batched_tokens=256)
    engine.leases.open("t", started(engine, prompt=200), 0.0)
    engine.cancel("a")
    engine.submit(Submit("b", [6] * 200, greedy(8)))
    engine.step()
    assert engine.stalled
    assert not engine.idle
    host = Idle()
    serve(engine, host, Stopping())
    assert [message.finish for message in host.sent if isinstance(message, Tokens) and message.finish] == ["length"]
    assert engine.cache.unused


def test_a_stalled_engine_sleeps_until_the_next_beat():
    engine = null_engine(pages=16, max_num_batched_tokens=256)
    engine.leases.open("t", started(engine, prompt=200), 3600)
    engine.cancel("a")
    engine.submit(Submit("b", [6] * 200, greedy(8)))

    class Host(Script):
        def receive(self, wait: float, others: object = ()) -> list[ToEngine]:
            waits.append(wait)
            if len(waits) == 4:
                engine.leases.close("t")
            return [Stop(60)] if len(waits) > 4 else []

    waits: list[float] = []
    serve(engine, Host(), Stopping())
    assert all(waits[1:4]), "it would turn round and round"
    assert engine.cache.unused


def test_a_page_that_changed_hands_under_a_lease_is_found_and_put_out_of_use(caplog):
    engine = null_engine()
    [refs] = started(engine)
    engine.leases.open("t", [refs], 0.0)
    engine.cancel("a")
    engine.cache.groups[0].pool.release(refs[0])
    assert engine.reap(float("inf")) == ["t"]
    assert "kind=release" in caplog.text
    assert engine.stats().pages[0].quarantined == 1
    engine.cache.check()
