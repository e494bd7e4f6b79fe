"""What one step is to do: a plain value from the scheduler to the runner, which knows tensors but no policy."""

from dataclasses import dataclass
from typing import NamedTuple

from trimaran.engine.sequence import Sequence


class Chunk(NamedTuple):
    """Run ``rows`` tokens of ``sequence`` from position ``first``."""

    sequence: Sequence
    slot: int  # row of the page table
    first: int
    rows: int
    samples: bool  # the chunk reaches the sequence's last token, so its last row gives the next one
    draft: tuple[int, ...] = ()  # tokens that are thought to follow: of the rows, those behind the first; all give one


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Chunks of different sequences, those that decode first; empty when there is nothing to do."""

    chunks: tuple[Chunk, ...]
    rows: int
    decoding: int | None = None  # so many chunks, the first, run generated tokens; None: nobody tells them from prompts
    arriving: tuple[Sequence, ...] = ()  # have got pages that are filled from elsewhere
    spoilt: tuple[Sequence, ...] = ()  # cannot go on: of what their pages held, something is lost
