"""The tokens of a step: what its requests' samplers and constraints make of the logits."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from trimaran.base.errors import NumericsError, TrimaranError
from trimaran.base.messages import Token
from trimaran.engine.constraints.constraints import Constraints
from trimaran.engine.constraints.matcher import NO_MASKS, UInt32
from trimaran.engine.request import Look, Request
from trimaran.engine.sampling import Asked, Sampling
from trimaran.kernels.step import StepOutputs

NOT_FINITE = "the model's logits for this request are not finite"


class Constrained(NamedTuple):
    """A request with a matcher, its draft, and the first of its rows that give a token."""

    request: Request
    draft: tuple[int, ...]
    row: int


@dataclass(slots=True)
class Question:
    """What the rows of a step that give a token are asked for."""

    asked: list[Asked]  # of each row; empty when the largest logit is all that is asked for
    constrained: list[Constrained]  # in order
    masks: UInt32  # of all rows of these, once they are filled
    looked: list[tuple[int, Look]] = field(default_factory=list)  # rows that somebody looks at


class Choosing:
    """``draft`` and ``ask`` before a step, ``mask`` while it runs, since masks need no logits, ``answer`` after it."""

    def __init__(self, sampling: Sampling, constraints: Constraints) -> None:
        self._sampling = sampling
        self._constraints = constraints

    def draft(self, request: Request, most: int, least: float) -> tuple[int, ...]:
        """At most ``most`` tokens that are thought to come next, which its constraint lets through. Of drafts like it
        the share ``least`` must have been right lately."""
        drafter, matcher, tokens = request.drafter, request.matcher, request.sequence.tokens
        if drafter is None or most <= 0:
            return ()
        request.looked_up = True
        if matcher is None:
            return drafter.draft(tokens, most, least)
        if not matcher.drafts:
            return ()
        forced = self._constraints.forced(matcher, min(most, drafter.most))
        if forced:
            request.looked_up = False
            return forced
        return self._constraints.accepted(matcher, drafter.draft(tokens, most, least))

    def judge(self, request: Request, drafted: int, right: int) -> None:
        """Of the last draft of a request, ``drafted`` tokens, the first ``right`` were."""
        if request.looked_up and request.drafter is not None:
            request.drafter.judge(drafted, right)

    def ask(self, requests: Sequence[Request], drafts: Sequence[tuple[int, ...]]) -> Question:
        """``requests`` give a token each, and those with a draft one more for each of its tokens."""
        if not any(request.sampler is not None or request.look is not None for request in requests):
            return Question([], [], NO_MASKS)
        question = Question([], [], NO_MASKS)
        asked, masked = question.asked, 0
        for request, draft in zip(requests, drafts, strict=True):
            mask = None
            if request.look is not None:
                question.looked.append((len(asked), request.look))
            if request.matcher is not None:
                mask = masked
                masked += 1 + len(draft)
                question.constrained.append(Constrained(request, draft, len(asked)))
            position = len(request.sequence.tokens)
            asked.append(Asked(request.sampler, position, mask))
            for place, token in enumerate(draft, 1):
                asked.append(Asked(request.sampler, position + place, None if mask is None else mask + place, token))
        return question

    def mask(self, question: Question) -> None:
        """Fills the masks. A matcher that cannot say what comes next has an ``error`` then."""
        if question.constrained:
            matchers = [c.request.matcher for c in question.constrained if c.request.matcher]
            question.masks = self._constraints.fill(matchers, [c.draft for c in question.constrained])

    def answer(self, question: Question, outputs: StepOutputs) -> list[Token | None]:
        """A token for each row that gives one, None where there is none. Matchers have moved on by theirs, but for
        those of drafts: only who takes the tokens over knows how many there are (``advance``)."""
        for row, look in question.looked:
            assert outputs.logits is not None
            look(outputs.logits[row])
        tokens = self._sampling.tokens(outputs, question.asked, question.masks)
        if question.constrained:
            chosen = [(c.request, tokens[c.row]) for c in question.constrained if not c.draft]
            self._advance([(request, token.id) for request, token in chosen if token is not None])
        return tokens

    def advance(self, request: Request, token: int) -> None:
        """Moves the matcher of a request with a draft by a token that has turned out to be its next."""
        self._advance([(request, token)])

    def failure(self, question: Question, row: int) -> TrimaranError:
        """Why a row has given no token, though nothing was wrong before."""
        mask = question.asked[row].mask if question.asked else None
        if mask is not None and not question.masks[mask].any():
            matchers = [c.request.matcher for c in question.constrained if c.row <= row <= c.row + len(c.draft)]
            assert matchers[0] is not None
            return matchers[0].kind.nothing_left()
        return NumericsError(NOT_FINITE)

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
