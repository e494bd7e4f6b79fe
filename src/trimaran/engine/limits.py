"""What an engine's steps and queue may hold."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SchedulerLimits:
    """What a step and the queue may hold. A step has at least one row for each running sequence."""

    context: int  # tokens of one sequence, prompt and output
    max_num_seqs: int
    max_num_batched_tokens: int
    max_waiting: int
    page_size: int
    apart: bool = False  # rows of prompts meet other weights than those of generated tokens: no chunk has both

    def __post_init__(self) -> None:
        assert self.max_num_batched_tokens >= self.max_num_seqs > 0
