"""Drafts that are right as long as a test wants, so that answers do not have to repeat themselves."""

from array import array
from collections.abc import Sequence

from trimaran.base.messages import Submit
from trimaran.engine.drafts import Drafter
from trimaran.engine.engine import Engine

from .driving import Answer, Answers, run


class Told(Drafter):
    """Drafts of an answer that is known, right for as many tokens as ``right`` says, one draft after the other."""

    def __init__(self, answer: list[int], right: Sequence[int], prompt: int) -> None:
        super().__init__(8)
        self._answer, self._right_for, self._prompt = answer, right, prompt

    def draft(self, tokens: "array[int]", most: int, least: float) -> tuple[int, ...]:
        said = len(tokens) - self._prompt
        right = self._right_for[said % len(self._right_for)]
        draft = self._answer[said : said + right]
        return tuple([*draft, 3, 3, 3][: min(most, 8)])


def tell(engine: Engine, request: Submit, answer: Answer, right: Sequence[int]) -> None:
    """Has a request that was submitted draft ``answer``."""
    made = engine._requests[request.id]
    if made.drafter is not None:
        made.drafter = Told(answer.ids, right, len(request.prompt))


def told(engine: Engine, requests: Sequence[Submit], answers: Answers, right: Sequence[int]) -> Answers:
    """Runs requests with drafts of the answers that they have without."""
    for request in requests:
        engine.submit(request)
        tell(engine, request, answers[request.id], right)
    return run(engine)
