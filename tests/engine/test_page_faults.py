"""An engine whose books are broken under load ends the requests concerned, and no other."""

import logging

import pytest

from trimaran.base.errors import EngineDiedError, PageIntegrityError
from trimaran.base.failures import error_of
from trimaran.base.messages import Failed, Submit
from trimaran.bench.fault_campaign import TRANSFER_FAULTS, Campaign, lone_tokens
from trimaran.bench.faults import INJECTORS
from trimaran.engine.engine import Engine
from trimaran.kernels.null import NullModel

from .driving import greedy, null_engine, run


@pytest.fixture
def silent(monkeypatch):
    """A campaign would log a line for each fault."""
    monkeypatch.setattr(logging.getLogger("trimaran.engine.faults"), "disabled", True)


def open_engine(**options) -> Engine:
    return null_engine(overlap=False, max_num_batched_tokens=64, **options)


def campaign(faults: int, seed: int, engine: Engine | None = None) -> Campaign:
    made = Campaign(engine or open_engine(pages=600), lone_tokens(open_engine()), 512, seed=seed)
    made.run(faults)
    return made


@pytest.mark.parametrize("seed", range(4))
def test_a_campaign_of_faults(silent, seed):
    tally = campaign(60, seed).tally
    assert tally.clean, tally
    assert tally.detected > 40
    assert tally.checked > 5000


@pytest.mark.parametrize("kind", INJECTORS)
def test_each_kind_of_faults(silent, monkeypatch, kind):
    monkeypatch.setattr("trimaran.bench.fault_campaign.INJECTORS", {kind: INJECTORS[kind]})
    monkeypatch.setattr("trimaran.bench.fault_campaign.TRANSFER_FAULTS", {})
    tally = campaign(12, 7).tally
    assert tally.clean, tally
    assert tally.injected == {kind: 12}


def test_a_fault_that_another_undoes_is_none(monkeypatch):
    def swap(cache, sequences, random):
        group, [held] = cache.groups[0], sequences[0].pages
        rows = group.table[sequences[0].slot]
        rows[[held.first, held.first + 1]] = rows[[held.first + 1, held.first]]
        return True

    monkeypatch.setattr("trimaran.bench.fault_campaign.INJECTORS", {"swap": swap})
    made = Campaign(open_engine(), lone_tokens(open_engine()), 512)
    while not made._running or not made._running[0].computed:
        made.submit()
        made.step()
    for _ in range(2):
        made.inject("swap")
    tally = made.end()
    assert tally.clean, tally
    assert (tally.injected.total(), tally.detected, tally.harmless) == (2, 0, 0)


@pytest.mark.parametrize("kind", TRANSFER_FAULTS)
def test_each_kind_of_faults_of_transfers(silent, monkeypatch, kind):
    monkeypatch.setattr("trimaran.bench.fault_campaign.INJECTORS", {})
    monkeypatch.setattr("trimaran.bench.fault_campaign.TRANSFER_FAULTS", {kind: TRANSFER_FAULTS[kind]})
    tally = campaign(12, 7).tally
    assert tally.clean, tally
    assert tally.injected == {kind: 12}
    assert tally.detected >= 12
    assert tally.leases > 5


def test_a_copy_that_gets_through_is_a_fault_that_was_missed(silent, monkeypatch):
    monkeypatch.setattr("trimaran.bench.fault_campaign.INJECTORS", {})
    engine = open_engine(pages=600)
    monkeypatch.setattr(engine.handover, "take", lambda *_: None)
    assert campaign(12, 7, engine).tally.missed == 12


def test_faults_in_groups_with_windows(silent):
    model = NullModel(windows=(None, 48))
    engine = open_engine(pages=600, null=model)
    tally = Campaign(engine, lone_tokens(open_engine(null=model)), 512, seed=3).run(60)
    assert tally.clean, tally


def test_without_tags_the_campaign_finds_foreign_tokens(silent):
    """The campaign itself can fail: it sees what an unchecked engine gives away."""
    engine = open_engine(pages=600, page_tags=False)
    engine.cache.check = lambda: None
    with pytest.raises(AssertionError):  # of the null executor, of the pool, or here
        assert campaign(60, 0, engine).tally.clean


def test_a_fault_is_told_logged_and_counted(caplog):
    engine = open_engine()
    engine.submit(Submit("victim", [5] * 20, greedy()))
    engine.submit(Submit("other", [6] * 20, greedy()))
    engine.step()
    group = engine.cache.groups[0]
    victim = engine.sequences[0]
    group.table[victim.slot, 0] = 77
    messages = engine.step()
    [failure] = [message for message in messages if isinstance(message, Failed)]
    assert failure.id == "victim"
    assert isinstance(error_of(failure), PageIntegrityError)
    assert "request=victim group=0 index=0 page=77 kind=tag" in caplog.text
    stats = engine.stats()
    assert stats.page_faults == 1
    assert stats.pages[0].quarantined == 1, "page 77, which nobody had"
    assert run(engine)["other"].finish == "length"
    assert engine.cache.unused
    engine.close()


def test_an_engine_without_room_for_a_sequence_ends(silent):
    """Rather than preempt the only sequence again and again."""
    engine = open_engine(pages=18)  # of which 16 are a full context's
    group = engine.cache.groups[0]
    for page in (18, 17):
        engine.submit(Submit("victim", [5] * 20, greedy()))
        engine.step()
        group.table[engine.sequences[0].slot, 0] = page
        engine.step()
    assert group.pool.quarantined == 2
    engine.submit(Submit("victim", [5] * 20, greedy()))
    engine.step()
    group.table[engine.sequences[0].slot, 0] = 16
    with pytest.raises(EngineDiedError, match="3 of 18 pages are out of use after page faults"):
        engine.step()
    engine.close()


def test_a_page_that_a_neighbour_holds_stays_with_it():
    engine = open_engine()
    engine.submit(Submit("victim", [5] * 20, greedy()))
    engine.submit(Submit("other", [6] * 20, greedy()))
    engine.step()
    victim, other = engine.sequences
    table = engine.cache.groups[0].table
    table[victim.slot, 0] = table[other.slot, 0]
    engine.step()
    assert [sequence.id for sequence in engine.sequences] == ["other"]
    assert engine.stats().pages[0].quarantined == 0
    engine.close()


def test_a_page_that_was_taken_from_its_holder_is_found_when_it_is_given_back(caplog):
    engine = open_engine()
    engine.submit(Submit("victim", [5] * 20, greedy()))
    engine.step()
    victim = engine.sequences[0]
    engine.cache.groups[0].pool.release(victim.pages[0].refs[1])
    engine.cancel("victim")
    assert "kind=release" in caplog.text
    assert engine.stats().pages[0].quarantined == 1
    engine.close()
