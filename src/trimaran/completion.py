"""What ``LLM`` returns."""

from dataclasses import dataclass
from typing import Literal

from trimaran.base.messages import Token

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class Output:
    """One choice. ``token_ids`` are those whose text is in ``text``: neither a stop token nor a stop string is.

    ``stop_reason`` is the stop string or the id of ``stop_token_ids`` that ended it, ``None`` for an end of turn.
    ``logprobs`` has one entry for each of ``token_ids``, if asked for.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: str | int | None = None
    logprobs: tuple[Token, ...] | None = None


@dataclass(frozen=True)
class Completion:
    """A prompt and its ``n`` continuations; ``cached_tokens`` of the prompt came from the prefix cache."""

    prompt_ids: tuple[int, ...]
    outputs: tuple[Output, ...]
    cached_tokens: int = 0

    @property
    def text(self) -> str:
        """The text of the first continuation."""
        return self.outputs[0].text


@dataclass(frozen=True)
class Delta:
    """What a streaming call adds to one choice of one prompt (both by index); the last one has a ``finish_reason``."""

    prompt: int
    choice: int
    text: str
    token_ids: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    logprobs: tuple[Token, ...] | None = None
    cached_tokens: int = 0
