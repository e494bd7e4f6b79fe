"""The routes that score pairs of texts, by whatever is served: as a cosine of two vectors, or a logit of the pair."""

import math
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from trimaran.base.errors import RequestError
from trimaran.base.messages import Score
from trimaran.server.api import Api
from trimaran.server.caller import Caller
from trimaran.server.embedding import EmbeddingPlane
from trimaran.server.guards import caller
from trimaran.server.openai.identity import Identity, ModelCard
from trimaran.server.openai.scoring import Comparison, RerankRequest, ScoreRequest, Scoring, reranking, score_list
from trimaran.server.text_work import TextWork

if TYPE_CHECKING:
    from trimaran.server.embedding import Float32

Answer = Callable[[Request, Coroutine[Any, Any, msgspec.Struct], Identity], Coroutine[Any, Any, Response]]
RERANK, SCORE = ("/v1/rerank", "/v2/rerank", "/rerank"), ("/v1/score", "/score")


@dataclass(frozen=True)
class Reading:
    """What a model reads to compare texts: ``pairs`` are numbers of ``texts``, or each text is a pair itself."""

    texts: list[list[int]]
    names: list[str]  # what the request calls each
    pairs: list[tuple[int, int]] | None = None
    seconds: list[int] | None = None


def read(request: Scoring, comparison: Comparison, plane: EmbeddingPlane) -> Reading:
    """Raises ``RequestError``."""
    longest = request.longest(plane.limits.context)
    first, second = comparison.names
    if plane.limits.score is not None:
        names = [f"{name} with {first}" for name in _named(second, comparison.second)]
        whole = []
        for name, pair in zip(names, plane.tokenizer.encode_pairs(comparison.pairs(), longest), strict=True):
            plane.require_fits(name, pair.ids)
            whole.append(pair)
        return Reading([pair.ids for pair in whole], names, seconds=[pair.second for pair in whole])
    if request.use_activation is not None:
        raise RequestError("use_activation says nothing of a cosine", param="use_activation")
    numbers: dict[str, int] = {}  # a text that is there twice is read once
    names = []
    for side, texts in ((first, comparison.first), (second, comparison.second)):
        for name, text in zip(_named(side, texts), texts, strict=True):
            if text not in numbers:
                numbers[text] = len(numbers)
                names.append(name)
    pairs = [(numbers[one], numbers[other]) for one, other in comparison.pairs()]
    return Reading(plane.tokenizer.encode(list(numbers), longest), names, pairs=pairs)


def _named(side: str, texts: Sequence[str]) -> list[str]:
    return [side] if len(texts) == 1 else [f"{side}[{number}]" for number in range(len(texts))]


async def scores(reading: Reading, plane: EmbeddingPlane, made_by: Score | None, caller: Caller) -> list[float]:
    """A number for each pair. Raises what ``plane.embed`` raises."""
    rows = await plane.embed(reading.texts, caller, names=reading.names, seconds=reading.seconds)
    if reading.pairs is not None:
        return cosines(rows, reading.pairs)
    logits: list[float] = rows[:, 0].tolist()
    return [sigmoid(logit) for logit in logits] if made_by == "sigmoid" else logits


def cosines(rows: "Float32", pairs: Sequence[tuple[int, int]]) -> list[float]:
    """Of the ``rows`` that each pair names; of one without length 0. The same bits whatever else is compared."""
    import numpy as np

    wide = rows.astype(np.float64)
    wide /= np.maximum(np.sqrt((wide * wide).sum(1, keepdims=True)), 1e-12)
    exact = (float((wide[one] * wide[other]).sum()) for one, other in pairs)
    return [min(1.0, max(-1.0, cosine)) for cosine in exact]  # rounding may take it a little further


def sigmoid(logit: float) -> float:
    """``1 / (1 + e^-logit)``, of any float."""
    small = math.exp(-abs(logit))
    return 1 / (1 + small) if logit >= 0 else small / (1 + small)


def add_scoring(api: Api, plane: EmbeddingPlane, card: ModelCard, answer: Answer) -> None:
    """The routes of a model that has scores; ``answer`` waits for work while the client does."""
    text = TextWork()

    async def scored(request: Request, body: Scoring, comparison: Comparison) -> tuple[list[float], int]:
        reading = await text.run(request, read, body, comparison, plane)
        made_by = "identity" if body.use_activation is False else plane.limits.score
        return await scores(reading, plane, made_by, caller(request)), sum(map(len, reading.texts))

    async def rerank(request: Request, body: RerankRequest) -> Response:
        identity = card.identity("rerank", body.model)

        async def work() -> msgspec.Struct:
            return reranking(body, *await scored(request, body, body.comparison()), identity)

        return await answer(request, work(), identity)

    async def score(request: Request, body: ScoreRequest) -> Response:
        identity = card.identity("score", body.model)

        async def work() -> msgspec.Struct:
            return score_list(*await scored(request, body, body.comparison()), identity)

        return await answer(request, work(), identity)

    for path in RERANK:
        api.post(path)(rerank)
    for path in SCORE:
        api.post(path)(score)
