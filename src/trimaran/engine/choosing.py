"""The tokens of a step: what its requests' samplers and constraints make of the logits."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from trimaran.base.messages import Token
from trimaran.engine.constraints.constraints import Constraints
from trimaran.engine.constraints.matcher import NO_MASKS, UInt32
from trimaran.engine.request import Look, Request
from trimaran.engine.sampling import Asked, Sampling
from trimaran.kernels.step import StepOutputs


@dataclass(slots=True)
class Question:
    """What the rows of a step that give a token are asked for."""

    asked: list[Asked]  # of each row; empty when the largest logit is all that is asked for
    constrained: list[Request]  # of these rows, those with a matcher, in order
    masks: UInt32  # of these, once they are filled
    looked: list[tuple[int, Look]] = field(default_factory=list)  # rows that somebody looks at


class Choosing:
    """``ask`` before the step, ``mask`` while it runs, since masks need no logits, ``answer`` after it."""

    def __init__(self, sampling: Sampling, constraints: Constraints) -> None:
        self._sampling = sampling
        self._constraints = constraints

    def ask(self, requests: Sequence[Request]) -> Question:
        """``requests`` are those of the rows that give a token, in order."""
        if not any(request.sampler is not None or request.look is not None for request in requests):
            return Question([], [], NO_MASKS)
        looked = [(row, request.look) for row, request in enumerate(requests) if request.look is not None]
        asked: list[Asked] = []
        constrained: list[Request] = []
        for request in requests:
            mask = None
            if request.matcher is not None:
                mask = len(constrained)
                constrained.append(request)
            asked.append(Asked(request.sampler, request.sequence.total, mask))
        return Question(asked, constrained, NO_MASKS, looked)

    def mask(self, question: Question) -> None:
        """Fills the masks. A matcher that cannot say what comes next has an ``error`` then."""
        if question.constrained:
            question.masks = self._constraints.fill([r.matcher for r in question.constrained if r.matcher])

    def answer(self, question: Question, outputs: StepOutputs) -> list[Token | None]:
        """A token for each row that gives one, None where there is none; matchers have moved on by theirs."""
        for row, look in question.looked:
            assert outputs.logits is not None
            look(outputs.logits[row])
        tokens = self._sampling.tokens(outputs, question.asked, question.masks)
        if not question.constrained:
            return tokens
        constrained = (token for token, ask in zip(tokens, question.asked, strict=True) if ask.mask is not None)
        chosen = []
        for place, (request, token) in enumerate(zip(question.constrained, constrained, strict=True)):
            if token is not None:
                chosen.append((request, token.id))
            elif request.matcher and not question.masks[place].any():
                request.matcher.error = request.matcher.error or request.matcher.kind.nothing_left()
        self._advance(chosen)
        return tokens

    def note(self, request: Request, token: int) -> None:
        """Takes account of a token of ``request`` that was chosen elsewhere."""
        self._sampling.note(request.sampler, token)
        self._advance([(request, token)])

    def _advance(self, chosen: Sequence[tuple[Request, int]]) -> None:
        """A stop token ends an answer and is not part of it."""
        matchers, tokens = [], []
        for request, token in chosen:
            matcher = request.matcher
            if matcher is not None and matcher.error is None and token not in request.stops:
                matchers.append(matcher)
                tokens.append(token)
        if matchers:
            self._constraints.advance(matchers, tokens)
