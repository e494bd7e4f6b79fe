"""Ways to break an engine's page tables and books between two steps, each as a bug would."""

from collections import Counter
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from random import Random

from trimaran.engine.cache import KVCache
from trimaran.engine.group import PageGroup
from trimaran.engine.pages import PageRef
from trimaran.engine.sequence import Sequence

Entry = tuple[int, int]  # cache group, index of the page in the sequence
Injector = Callable[[KVCache, Items[Sequence], Random], bool]  # False: there was nothing to break


def traces(cache: KVCache, sequences: Items[Sequence]) -> dict[str, dict[Entry, tuple[int, ...]]]:
    """All that decides what each sequence reads and writes, by entry: a fault has touched the entries that differ."""
    found: dict[str, dict[Entry, tuple[int, ...]]] = {}
    for sequence in sequences:
        entries = found[sequence.id] = {}
        for number, (group, held) in enumerate(zip(cache.groups, sequence.pages, strict=True)):
            for index, ref in enumerate(held.refs, held.first):
                entries[number, index] = (
                    int(group.table[sequence.slot, index]),
                    *(int(each[sequence.slot, index]) for each in group.expected or ()),
                    int(group.pool.tags[ref.page]),
                    int(group.pool.owner_numbers[ref.page]),
                )
    return found


def miscounted(
    cache: KVCache, sequences: Items[Sequence], leased: Iterable[tuple[int, PageRef]] = ()
) -> set[tuple[int, int]]:
    """(group, page) of pages that are not held as often as the books say: someone will lose them under his hands.
    ``leased`` are groups and pages of leases."""
    used = [(number, ref) for sequence in sequences for number, held in enumerate(sequence.pages) for ref in held.refs]
    holders = Counter(
        (number, ref.page) for number, ref in (*used, *leased) if cache.groups[number].pool.tags[ref.page] == ref.tag
    )
    return {(number, page) for (number, page), n in holders.items() if cache.groups[number].pool.references(page) != n}


def _pick(cache: KVCache, sequences: Items[Sequence], random: Random) -> tuple[Sequence, PageGroup, int, PageRef]:
    """Any entry of any running sequence."""
    sequence = random.choice(sequences)
    number = random.randrange(len(cache.groups))
    held = sequence.pages[number]
    index = random.randrange(held.first, held.end)
    return sequence, cache.groups[number], index, held.refs[index - held.first]


def swap_entries(cache: KVCache, sequences: Items[Sequence], random: Random) -> bool:
    """Two entries of one table change places, of two sequences or of one."""
    a, group, i, _ = _pick(cache, sequences, random)
    b, other, j, _ = _pick(cache, sequences, random)
    if group is not other or (a, i) == (b, j):
        return False
    group.table[[slot_of(a), slot_of(b)], [i, j]] = group.table[[slot_of(b), slot_of(a)], [j, i]]
    return True


def swap_rows(cache: KVCache, sequences: Items[Sequence], random: Random) -> bool:
    """Two sequences change rows, as if a resumed one had been given another's slot: what their entries were made for
    goes with them."""
    if len(sequences) < 2:
        return False
    a, b = map(slot_of, random.sample(sequences, 2))
    for group in cache.groups:
        for rows in (group.table, *(group.expected or ())):
            rows[[a, b]] = rows[[b, a]]
    return True


def flip_entry(cache: KVCache, sequences: Items[Sequence], random: Random) -> bool:
    """A bit of an entry flips: another page, or none that there is."""
    sequence, group, index, _ = _pick(cache, sequences, random)
    group.table[sequence.slot, index] ^= 1 << random.randrange(31)
    return True


def leave_bounds(cache: KVCache, sequences: Items[Sequence], random: Random) -> bool:
    """An entry leads behind the last page, before the first, or to the null page."""
    sequence, group, index, _ = _pick(cache, sequences, random)
    group.table[sequence.slot, index] = random.choice([group.pool.total + 1, 2**31 - 1, -1, -(2**31), 0])
    return True


def age_tag(cache: KVCache, sequences: Items[Sequence], random: Random) -> bool:
    """An entry has the tag that its page had before."""
    sequence, group, index, _ = _pick(cache, sequences, random)
    if group.expected is None:
        return False
    group.expected.tags[sequence.slot, index] -= random.randint(1, 5)
    return True


def flip_tag(cache: KVCache, sequences: Items[Sequence], random: Random) -> bool:
    """A bit of a page's tag flips."""
    _, group, _, ref = _pick(cache, sequences, random)
    group.pool.tags[ref.page] ^= 1 << random.randrange(62)
    return True


def free_in_use(cache: KVCache, sequences: Items[Sequence], random: Random) -> bool:
    """A page is given back while sequences have it, as often as they do; a sealed one goes out of the prefix cache."""
    _, group, _, ref = _pick(cache, sequences, random)
    return free_under_holders(group, ref)


def free_shared(cache: KVCache, sequences: Items[Sequence], random: Random) -> bool:
    """A page of a prefix that several sequences have is freed under all of them."""
    shared = [
        (group, ref)
        for number, group in enumerate(cache.groups)
        for ref in {ref for sequence in sequences for ref in sequence.pages[number].refs}
        if sum(ref in sequence.pages[number].refs for sequence in sequences) > 1
    ]
    return bool(shared) and free_under_holders(*random.choice(shared))


def abort_in_prefill(cache: KVCache, sequences: Items[Sequence], random: Random) -> bool:
    """A sequence whose prompt is being computed gives its pages back, as an abort has it do, and is computed on."""
    prefilling = [sequence for sequence in sequences if sequence.computed < sequence.prompt_length]
    if not prefilling:
        return False
    sequence = random.choice(prefilling)
    for group, held in zip(cache.groups, sequence.pages, strict=True):
        for ref in held.refs:
            if group.pool.held(ref):
                group.pool.release(ref)
    return True


def free_twice(cache: KVCache, sequences: Items[Sequence], random: Random) -> bool:
    """A reference is given back that its holder will give back too."""
    _, group, _, ref = _pick(cache, sequences, random)
    if not group.pool.held(ref):
        return False
    group.pool.release(ref)
    return True


def race_for_page(cache: KVCache, sequences: Items[Sequence], random: Random) -> bool:
    """A page is freed under its holders, and another sequence gets it."""
    _, group, _, ref = _pick(cache, sequences, random)
    other = random.choice(sequences)
    held = other.pages[cache.groups.index(group)]
    if any(ref == each for each in held.refs) or held.end == group.table.shape[1] or not free_under_holders(group, ref):
        return False
    group.extend(slot_of(other), held, held.end + 1, other.id, other.owner)
    return True


def free_under_holders(group: PageGroup, ref: PageRef) -> bool:
    """Frees a page that is held, as often as it is, and unpublishes it; False when it is not."""
    if not group.pool.held(ref):
        return False
    owner = group.pool.owners[ref.page]
    while group.pool.held(ref):
        group.pool.release(ref)
    if isinstance(owner, bytes):
        group.pool.forget(owner)
    return True


def slot_of(sequence: Sequence) -> int:
    """The row of a sequence that runs."""
    assert sequence.slot is not None
    return sequence.slot


INJECTORS: dict[str, Injector] = {
    "swapped entries": swap_entries,
    "swapped rows (preempt and resume)": swap_rows,
    "flipped bit in the table": flip_entry,
    "page out of range": leave_bounds,
    "stale tag": age_tag,
    "flipped bit in a tag": flip_tag,
    "use after free": free_in_use,
    "prefix-shared page freed": free_shared,
    "abort mid-prefill": abort_in_prefill,
    "double free": free_twice,
    "reallocation race": race_for_page,
}
