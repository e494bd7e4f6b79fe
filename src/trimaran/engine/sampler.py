"""Chooses the tokens of one request from its rows of logits."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from trimaran.base.errors import RequestError
from trimaran.base.messages import Token
from trimaran.base.sampling import SamplingParams
from trimaran.engine.filters import Scratch, draw, keep_heavy, top_k, top_p, uniform
from trimaran.engine.history import History

Float32 = npt.NDArray[np.float32]
_COLDEST = 1e-6  # a temperature that float32 divides by without overflow; colder is greedy in effect


class Sampler:
    """The sampling options of one request, made ready, and what they need to remember.

    A choice is a function of the row, the tokens so far, the key and the position: batch, chunks and preemption do not
    enter. ``key`` is the request's seed, or a random number for a request without one.
    """

    def __init__(
        self, params: SamplingParams, *, prompt: list[int], stops: frozenset[int], key: int, scratch: Scratch
    ) -> None:
        """Raises ``RequestError`` when an option does not fit the vocabulary, which is as long as ``scratch``."""
        vocab = len(scratch.scores)
        _require_ids("logit_bias", params.logit_bias, vocab)
        _require_ids("stop_token_ids", params.stop_token_ids, vocab)
        if params.min_tokens and len(stops) >= vocab:
            raise RequestError("min_tokens forbids every token: all of them are stop tokens", param="min_tokens")
        self.reads_logits = not params.plain_greedy
        self._params = params
        self._scratch = scratch
        self._key = key % 2**64
        self._top_k = params.top_k if 0 < params.top_k < vocab else 0
        self._stops = np.array(sorted(stops), np.intp)
        self._bias_ids = np.array(list(params.logit_bias), np.intp)
        self._bias = np.array(list(params.logit_bias.values()), np.float32)
        penalised = params.repetition_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0
        self._history = History(prompt) if penalised else None

    def pick(self, logits: Float32, *, position: int, output_length: int) -> Token:
        """The token at ``position`` of the sequence. ``logits`` ``[vocab]`` is finite and is not modified."""
        scores = self._adjust(logits, output_length)
        token = int(scores.argmax()) if self._params.greedy else self._sample(scores, position)
        if self._history is not None:
            self._history.add(token)
        if self._params.logprobs is None:
            return Token(token)
        return self._with_logprobs(logits, token, self._params.logprobs)

    def _adjust(self, logits: Float32, output_length: int) -> Float32:
        masks = output_length < self._params.min_tokens and len(self._stops) > 0
        if not (masks or len(self._bias_ids) or self._history):
            return logits
        scores = self._scratch.scores
        scores[:] = logits
        scores[self._bias_ids] += self._bias
        if masks:
            scores[self._stops] = -np.inf
        if self._history is not None:
            p = self._params
            self._history.penalise(scores, p.repetition_penalty, p.presence_penalty, p.frequency_penalty)
        return scores

    def _sample(self, scores: Float32, position: int) -> int:
        params, scratch = self._params, self._scratch
        ids = None
        if self._top_k:
            ids = top_k(scores, self._top_k, scratch)
            scores = scores[ids]
        weights = np.subtract(scores, scores.max(), out=scratch.weights[: len(scores)])
        weights /= np.float32(max(params.temperature, _COLDEST))
        np.exp(weights, out=weights)  # the heaviest is 1
        if params.top_p < 1:
            keep_heavy(weights, top_p(weights, params.top_p, scratch), scratch)
        if params.min_p > 0:
            keep_heavy(weights, np.float32(params.min_p), scratch)
        choice = draw(weights, uniform(self._key, position))
        return choice if ids is None else int(ids[choice])

    def _with_logprobs(self, logits: Float32, token: int, count: int) -> Token:
        """Log-probabilities of the model's own distribution: before penalties, temperature and filters."""
        peak = logits.max()
        weights = np.subtract(logits, peak, out=self._scratch.weights)
        log_sum = float(peak) + float(np.log(np.exp(weights, out=weights).sum()))
        best = top_k(logits, count, self._scratch) if count else ()
        return Token(token, float(logits[token]) - log_sum, [(int(i), float(logits[i]) - log_sum) for i in best])


def _require_ids(param: str, ids: Iterable[int], vocab: int) -> None:
    for token in ids:
        if not 0 <= token < vocab:
            raise RequestError(f"{param}: {token} is not a token of this model (0 to {vocab - 1})", param=param)
