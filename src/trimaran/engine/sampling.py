"""Chooses the tokens of a step, all rows in one call: natively where the executor is native, else in NumPy."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from trimaran.base.errors import RequestError
from trimaran.base.messages import Token
from trimaran.base.sampling import SamplingParams
from trimaran.engine.constraints.matcher import NO_MASKS, UInt32
from trimaran.engine.filters import sharpness
from trimaran.engine.sampler import Sampler
from trimaran.kernels.step import Executor, Float32, StepOutputs

if TYPE_CHECKING:
    from trimaran.kernels.native import Choice


class Asked(NamedTuple):
    """What a row of logits is asked for: the token of its sampler, for a position in the sequence, prompt included.

    ``mask`` is a row of the step's masks, or None. ``after``, in a draft, is the token that the row before must give:
    where it does not, this row is not asked, and so are those that follow.
    """

    sampler: Any | None
    position: int
    mask: int | None = None
    after: int | None = None


class Picker(Protocol):
    """Makes the samplers of requests and asks them. A sampler takes note of each token that it has picked."""

    def sampler(self, params: SamplingParams, *, prompt: list[int], stops: frozenset[int], key: int) -> Any:
        """For ``pick`` alone; see ``Sampler``, whose tokens all pickers give."""
        ...

    def pick(self, logits: Float32, rows: Sequence[int], asked: Sequence[Asked], masks: UInt32) -> list[Token | None]:
        """What each sampler makes of its row of ``logits``; None for a row that is not finite. What it makes of one
        behind a token that a draft has wrong means nothing; it remembers no token of such.

        ``logits`` is what the executor's last step returned, and stays as it is.
        """
        ...


class Sampling:
    """Samplers by request, tokens by step."""

    def __init__(self, executor: Executor, vocab: int) -> None:
        self._picker: Picker = _NativePicker(executor) if executor.name == "native" else _NumpyPicker()
        self._vocab = vocab

    def sampler(self, params: SamplingParams, *, prompt: list[int], stops: frozenset[int], key: int) -> Any | None:
        """What ``tokens`` asks for a request; None when it takes the largest logit, which needs no sampler.

        ``key`` is the request's seed, or a random number for one without. Raises ``RequestError`` when an option does
        not fit the vocabulary.
        """
        self._require_ids("logit_bias", params.logit_bias)
        self._require_ids("stop_token_ids", params.stop_token_ids)
        if params.min_tokens and len(stops) >= self._vocab:
            raise RequestError("min_tokens forbids every token: all of them are stop tokens", param="min_tokens")
        if params.plain_greedy:
            return None
        stops = frozenset(token for token in stops if token < self._vocab)  # a model may name ends that it cannot say
        return self._picker.sampler(params, prompt=prompt, stops=stops, key=key % 2**64)

    def tokens(self, outputs: StepOutputs, asked: Sequence[Asked], masks: UInt32 = NO_MASKS) -> list[Token | None]:
        """A token for every row of ``outputs``, of its sampler if it has one; None where the logits are no numbers.

        ``masks`` ``[n, ceil(vocab / 32)]``: a token whose bit is not set is not taken.
        """
        tokens = [Token(token) if token >= 0 else None for token in outputs.greedy.tolist()]
        rows = [row for row, ask in enumerate(asked) if ask.sampler is not None]
        if rows:
            assert outputs.logits is not None
            picked = self._picker.pick(outputs.logits, rows, [asked[row] for row in rows], masks)
            for row, token in zip(rows, picked, strict=True):
                tokens[row] = token
        return tokens

    def note(self, sampler: Any | None, token: int) -> None:
        """Tells a request's sampler of a token that was chosen elsewhere."""
        if sampler is not None:
            sampler.note(token)

    def _require_ids(self, param: str, ids: Iterable[int]) -> None:
        for token in ids:
            if not 0 <= token < self._vocab:
                message = f"{param}: {token} is not a token of this model (0 to {self._vocab - 1})"
                raise RequestError(message, param=param)


class _NumpyPicker:
    def sampler(self, params: SamplingParams, *, prompt: list[int], stops: frozenset[int], key: int) -> Sampler:
        return Sampler(params, prompt=prompt, stops=stops, key=key)

    def pick(self, logits: Float32, rows: Sequence[int], asked: Sequence[Asked], masks: UInt32) -> list[Token | None]:
        picked: list[Token | None] = []
        for row, (sampler, position, mask, after) in zip(rows, asked, strict=True):
            assert isinstance(sampler, Sampler)
            if after is not None and ((before := picked[-1]) is None or before.id != after):
                picked.append(None)
                continue
            picked.append(sampler.pick(logits[row], position, None if mask is None else masks[mask]))
        return picked


class _NativePicker:
    """Works on the executor's own logits, with its threads."""

    def __init__(self, executor: Executor) -> None:
        from trimaran.kernels.native import NativeExecutor

        assert isinstance(executor, NativeExecutor)
        self._executor = executor

    def sampler(self, params: SamplingParams, *, prompt: list[int], stops: frozenset[int], key: int) -> Any:
        from trimaran._native import Sampler as NativeSampler

        return NativeSampler(
            greedy=params.greedy,
            sharpness=sharpness(params.temperature),
            top_k=min(max(params.top_k, 0), 2**31 - 1),
            top_p=params.top_p,
            min_p=params.min_p,
            repetition=params.repetition_penalty,
            presence=params.presence_penalty,
            frequency=params.frequency_penalty,
            first_stop=min(len(prompt) + params.min_tokens, 2**63 - 1),
            stops=sorted(stops),
            bias_ids=list(params.logit_bias),
            bias=[float(bias) for bias in params.logit_bias.values()],
            logprobs=-1 if params.logprobs is None else params.logprobs,
            key=key,
            prompt=prompt if params.penalises else [],
        )

    def pick(self, logits: Float32, rows: Sequence[int], asked: Sequence[Asked], masks: UInt32) -> list[Token | None]:
        assert rows[-1] < len(logits), "a row that the last step did not have"
        samplers: list[Any] = [ask.sampler for ask in asked]
        positions = [ask.position for ask in asked]
        masked = [-1 if ask.mask is None else ask.mask for ask in asked] if len(masks) else []
        after = [-1 if ask.after is None else ask.after for ask in asked]
        return [_token(choice) for choice in self._executor.choose(samplers, rows, positions, masks, masked, after)]


def _token(choice: "Choice") -> Token | None:
    if isinstance(choice, int):
        return Token(choice) if choice >= 0 else None
    return Token(*choice)
