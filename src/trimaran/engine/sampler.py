"""Chooses the tokens of one request from its rows of logits: the definition. ``csrc/sampler.cpp`` does it fast."""

import numpy as np
import numpy.typing as npt

from trimaran.base.messages import Token
from trimaran.base.sampling import SamplingParams
from trimaran.engine.constraints.matcher import UInt32
from trimaran.engine.filters import LOG2E, draw, sharpness, top_k, top_p, uniform, weigh
from trimaran.engine.history import History

Float32 = npt.NDArray[np.float32]


class Sampler:
    """The sampling options of one request, made ready, and what they need to remember.

    A choice is a function of the row, the tokens so far, the key and the position: batch, chunks and preemption do not
    enter.
    """

    def __init__(self, params: SamplingParams, *, prompt: list[int], stops: frozenset[int], key: int) -> None:
        """All ids are in the vocabulary. ``key`` is the request's seed, or a random number for one without."""
        self._params = params
        self._key = key % 2**64
        self._first_stop = len(prompt) + params.min_tokens  # before this position stop tokens are forbidden
        self._stops = np.array(sorted(stops), np.intp)
        self._bias_ids = np.array(list(params.logit_bias), np.intp)
        self._bias = np.array(list(params.logit_bias.values()), np.float32)
        self._history = History(prompt) if params.penalises else None

    def pick(self, logits: Float32, position: int, mask: UInt32 | None = None) -> Token | None:
        """The token at ``position`` of the sequence, prompt included; None for a row that holds what is not a finite
        number. ``logits`` ``[vocab]`` is not modified. Bit ``i`` of ``mask`` ``[ceil(vocab / 32)]`` lets token ``i`` be
        taken."""
        if not np.isfinite(logits).all():
            return None
        scores = self._adjust(logits if mask is None else _masked(logits, mask), position)
        if not np.isfinite(scores.max()):  # a penalty may overflow
            return None
        token = int(scores.argmax()) if self._params.greedy else self._sample(scores, position)
        self.note(token)
        if self._params.logprobs is None:
            return Token(token)
        return self._with_logprobs(logits, token, self._params.logprobs)

    def note(self, token: int) -> None:
        """Takes note of a token of the output that another sampler, of another process, has chosen."""
        if self._history is not None:
            self._history.add(token)

    def _adjust(self, logits: Float32, position: int) -> Float32:
        p, scores = self._params, logits.copy()
        scores[self._bias_ids] += self._bias
        if position < self._first_stop:
            self._forbid_stops(scores)
        if self._history is not None:
            self._history.penalise(scores, p.repetition_penalty, p.presence_penalty, p.frequency_penalty)
        return scores

    def _forbid_stops(self, scores: Float32) -> None:
        """Unless a mask has left nothing else: what an answer must look like goes before how long it must be."""
        others = scores.copy()
        others[self._stops] = -np.inf
        if others.max() > -np.inf:
            scores[self._stops] = -np.inf

    def _sample(self, scores: Float32, position: int) -> int:
        p = self._params
        kept = np.sort(top_k(scores, p.top_k)) if p.top_k > 0 else np.arange(len(scores))
        weights = weigh(scores[kept], sharpness(p.temperature))
        least = np.float32(p.min_p)
        if p.top_p < 1:
            least = max(least, top_p(weights, p.top_p))
        weights[weights < least] = 0
        return int(kept[draw(weights, uniform(self._key, position))])

    def _with_logprobs(self, logits: Float32, token: int, count: int) -> Token:
        """Log-probabilities of the model's own distribution: before masks, penalties, temperature and filters."""
        log_sum = float(logits.max()) + float(np.log(weigh(logits, LOG2E).sum(dtype=np.float64)))
        best = top_k(logits, count)
        return Token(token, float(logits[token]) - log_sum, [(int(i), float(logits[i]) - log_sum) for i in best])


def _masked(logits: Float32, mask: UInt32) -> Float32:
    allowed = np.unpackbits(mask.view(np.uint8), count=len(logits), bitorder="little")
    return np.where(allowed, logits, np.float32(-np.inf))
