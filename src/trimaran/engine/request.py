"""From a ``Submit`` message to a request that can be scheduled, or to an error that says what is wrong with it."""

from collections.abc import Callable, Container
from dataclasses import dataclass
from random import Random
from typing import Any

from trimaran.base.errors import RequestError
from trimaran.base.messages import Submit
from trimaran.engine.constraints.matcher import Matcher
from trimaran.engine.drafts import Drafter
from trimaran.engine.sampling import Sampling
from trimaran.engine.sequence import Sequence
from trimaran.kernels.step import Float32

Look = Callable[[Float32], None]  # is shown the logits ``[vocab]`` of each token of a request


@dataclass(slots=True)
class Request:
    """A sequence with what decides its tokens and its end."""

    sequence: Sequence
    sampler: Any | None  # of ``Sampling``
    stops: frozenset[int]
    last: int  # tokens of prompt and output at which it ends for length
    key: int  # of its draws: its seed, or a random number
    look: Look | None = None
    matcher: Matcher | None = None  # of one with a grammar, before it runs
    drafter: Drafter | None = None  # of one that speculates
    looked_up: bool = False  # whether its last draft was its drafter's


class Reception:
    """Checks what is submitted, and gives each request its sampler, its stop tokens and its place in the order."""

    def __init__(
        self,
        sampling: Sampling,
        *,
        vocab: int,
        context: int,
        eos_ids: frozenset[int],
        seed: int | None,
        draft_tokens: int = 0,
    ) -> None:
        """``seed`` makes requests without a seed of their own repeatable. They speculate with drafts of at most
        ``draft_tokens``."""
        self._draft_tokens = draft_tokens
        self._sampling = sampling
        self._vocab = vocab
        self._context = context
        self._eos_ids = eos_ids
        self._keys = Random(seed)  # without a seed, what the system thinks random
        self._arrivals = 0

    def take(self, message: Submit, running: Container[str]) -> Request:
        """The request in ``message``; raises ``RequestError``. ``running``: ids that are taken."""
        sampling, vocab = message.sampling, self._vocab
        if message.id in running:
            raise RequestError(f"a request called {message.id!r} is running already", param="id")
        if sampling.n != 1:
            raise RequestError("the engine takes one answer a request; submit n requests", param="n")
        if not message.prompt:
            raise RequestError("the prompt is empty", param="prompt")
        if min(message.prompt) < 0 or max(message.prompt) >= vocab:
            raise RequestError(f"the prompt has token ids outside 0 to {vocab - 1}", param="prompt")
        stops = frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else self._eos_ids)
        key = self._keys.getrandbits(64) if sampling.seed is None else sampling.seed
        sampler = self._sampling.sampler(sampling, prompt=message.prompt, stops=stops, key=key)
        sequence = Sequence(
            message.id,
            message.prompt,
            sampling,
            arrival=self._arrivals,
            priority=message.priority,
            salt=message.salt,
        )
        self._arrivals += 1
        asked = self._context if sampling.max_tokens is None else len(message.prompt) + sampling.max_tokens
        drafter = Drafter(self._draft_tokens) if self._draft_tokens else None
        return Request(sequence, sampler, stops, last=min(asked, self._context), key=key, drafter=drafter)
