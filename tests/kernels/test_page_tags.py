"""A sequence whose pages are not what its step expects reads and writes the null page alone; its neighbours go on."""

from dataclasses import replace

import numpy as np
import pytest

from trimaran.base.formats import KVFormat
from trimaran.kernels.native import NativeExecutor
from trimaran.kernels.page_tags import PageTags, find_faults, owner_number
from trimaran.kernels.reference import ReferenceExecutor
from trimaran.kernels.step import ExecutorOptions, StepInputs, StepOutputs

from .tiny import program, random_tokens, random_weights

PAGES, LENGTH, NAMES = 24, 40, ("a", "b", "c")  # three pages each, the third half full
PREFIX = b"a prefix of two pages"


def options(**more) -> ExecutorOptions:
    return ExecutorOptions(KVFormat.BF16, num_pages=PAGES, max_rows=128, max_sequences=4, threads=2, **more)


class World:
    """Three sequences in an executor, each with pages of its own; the first two of each are sealed."""

    def __init__(self, executor) -> None:
        self.executor = executor
        self.table = np.zeros((4, 4), np.int32)
        self.expected = PageTags.of(4, 4)
        self.prompts = [random_tokens(LENGTH, seed) for seed in range(3)]
        self.numbers = np.array([owner_number(name) for name in NAMES], np.uint64)
        if executor.page_tags is None:
            self.held = PageTags.of(PAGES)
        else:
            [self.held] = executor.page_tags
        for slot in range(3):
            for index in range(3):
                self.hand_out(slot, index, page=4 + 3 * slot + index)
        self.run([0, 1, 2], prefill=True)
        for slot in range(3):
            for index in range(2):
                self.seal(slot, index)

    def hand_out(self, slot: int, index: int, page: int) -> None:
        self.table[slot, index] = page
        self.held.tags[page] = self.expected.tags[slot, index] = 100 + page
        self.held.owners[page] = self.numbers[slot]
        self.expected.owners[slot, index] = 0

    def seal(self, slot: int, index: int) -> None:
        key = np.uint64(owner_number(bytes([slot, index]) * 32))
        self.held.owners[self.table[slot, index]] = key
        self.expected.owners[slot, index] = key ^ self.numbers[slot]

    def inputs(self, slots: list[int], *, prefill: bool = False) -> StepInputs:
        lengths = [LENGTH if prefill else 1 for _ in slots]
        tokens = [token for slot in slots for token in (self.prompts[slot] if prefill else [7 + slot])]
        tagged = self.executor.page_tags is not None
        return StepInputs(
            tokens=np.array(tokens, np.int32),
            starts=np.cumsum([0, *lengths], dtype=np.int32),
            contexts=np.array([0 if prefill else LENGTH] * len(slots), np.int32),
            slots=np.array(slots, np.int32),
            page_tables=(self.table,),
            logits_rows=np.cumsum(lengths, dtype=np.int32) - 1,
            want_logits=True,
            expected=(self.expected,) if tagged else None,
            readers=self.numbers[slots] if tagged else None,
        )

    def run(self, slots: list[int], **more) -> StepOutputs:
        outputs = self.executor.run(self.inputs(slots, **more))
        return replace(outputs, logits=outputs.logits.copy())


@pytest.fixture(params=[NativeExecutor, ReferenceExecutor])
def worlds(request):
    """Makes worlds on one kind of executor."""
    tiny = program()
    weights = random_weights(tiny)
    made = []

    def make(**more) -> World:
        made.append(request.param(tiny, weights, options(**{"page_tags": True, **more})))
        return World(made[-1])

    yield make
    for executor in made:
        executor.close()


def swap_entries(world: World) -> None:
    world.table[[1, 2], [0, 0]] = world.table[[2, 1], [0, 0]]


def swap_rows(world: World) -> None:
    for rows in (world.table, *world.expected):
        rows[[1, 2]] = rows[[2, 1]]


FAULTS = {
    "another's page": lambda world: world.table.__setitem__((1, 0), world.table[0, 0]),
    "a free page": lambda world: world.table.__setitem__((1, 1), 20),
    "the null page": lambda world: world.table.__setitem__((1, 1), 0),
    "behind the last page": lambda world: world.table.__setitem__((1, 2), PAGES),
    "far behind it": lambda world: world.table.__setitem__((1, 2), 2**31 - 1),
    "before the first page": lambda world: world.table.__setitem__((1, 0), -1),
    "freed": lambda world: world.held.tags.__setitem__(world.table[1, 1], 0),
    "freed, and the entry says so": lambda world: (
        world.held.tags.__setitem__(world.table[1, 1], 0),
        world.expected.tags.__setitem__((1, 1), 0),
    ),
    "handed out anew": lambda world: world.held.tags.__setitem__(world.table[1, 2], 999),
    "stale tag": lambda world: world.expected.tags.__setitem__((1, 0), 99),
    "owned by another": lambda world: world.held.owners.__setitem__(world.table[1, 2], world.numbers[0]),
    "sealed under another key": lambda world: world.held.owners.__setitem__(world.table[1, 0], 5),
    "sealed, and to be written": lambda world: world.seal(1, 2),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_one_sequence_is_taken_out_and_the_others_go_on(worlds, fault):
    clean = worlds().run([0, 1, 2])
    assert clean.faulty == ()
    world = worlds()
    pages = np.array([page for page in range(1, PAGES) if page not in world.table[[0, 2]]], np.int32)
    FAULTS[fault](world)
    before = world.executor.export_pages(0, pages, KVFormat.BF16)
    broken = world.run([0, 1, 2])
    assert broken.faulty == (1,)
    assert np.array_equal(broken.logits[[0, 2]], clean.logits[[0, 2]]), "a neighbour's bits changed"
    assert np.array_equal(world.executor.export_pages(0, pages, KVFormat.BF16), before), "something was written"
    [found] = {(each.sequence, each.group) for each in find_faults(world.inputs([0, 1, 2]), (world.held,), (None,), 16)}
    assert found == (1, 0)


@pytest.mark.parametrize("swap", [swap_entries, swap_rows])
def test_what_two_sequences_have_of_each_other_takes_both_out(worlds, swap):
    clean, world = worlds().run([0, 1, 2]), worlds()
    swap(world)
    broken = world.run([0, 1, 2])
    assert broken.faulty == (1, 2)
    assert np.array_equal(broken.logits[0], clean.logits[0])


def test_a_row_of_another_sequence_is_not_its_own(worlds):
    """The right row, the wrong reader: as when a sequence that resumes is told another's slot."""
    world = worlds()
    inputs = world.inputs([0, 1])
    assert world.executor.run(replace(inputs, readers=inputs.readers[::-1].copy())).faulty == (0, 1)


def test_sharers_of_a_prefix_have_one_tag(worlds):
    world = worlds()
    for index in range(2):
        world.table[1, index] = world.table[0, index]
        world.expected.tags[1, index] = world.expected.tags[0, index]
        world.expected.owners[1, index] = world.held.owners[world.table[0, index]] ^ world.numbers[1]
    assert world.run([0, 1, 2]).faulty == ()
    world.held.tags[world.table[0, 1]] = 0
    assert world.run([0, 1, 2]).faulty == (0, 1)


def test_tags_change_no_bit(worlds):
    assert np.array_equal(worlds().run([0, 1, 2]).logits, worlds(page_tags=False).run([0, 1, 2]).logits)


def test_a_step_says_what_it_expects_if_there_are_tags(worlds):
    tagged, bare = worlds(), worlds(page_tags=False)
    with pytest.raises(ValueError, match="if, and only if"):
        tagged.executor.run(replace(tagged.inputs([0]), expected=None, readers=None))
    with pytest.raises(ValueError, match="if, and only if"):
        tagged.executor.run(replace(tagged.inputs([0]), readers=None))
    with pytest.raises(ValueError, match="if, and only if"):
        bare.executor.run(replace(bare.inputs([0]), expected=(bare.expected,), readers=bare.numbers[:1]))


def test_numbers_of_owners():
    assert owner_number(b"\x01" + bytes(31)) == 1
    assert owner_number("a") != owner_number("b")
    assert 0 < owner_number("a") < 2**64
