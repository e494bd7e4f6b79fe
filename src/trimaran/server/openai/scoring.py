"""``POST /v1/rerank`` and ``/v1/score``, in the shapes of vLLM, which are Jina's and Cohere's: how near texts are."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, ClassVar, Literal, Self

import msgspec
from pydantic import ConfigDict, Field, model_validator

from trimaran.base.errors import RequestError
from trimaran.server.openai import fields
from trimaran.server.openai.body import Body, OneFinding, Strings
from trimaran.server.openai.embeddings import MAX_TEXTS, EmbeddingUsage
from trimaran.server.openai.identity import Identity

SIDES = (("text_1", "text_2"), ("queries", "items"), ("queries", "documents"), ("data_1", "data_2"))


@dataclass(frozen=True)
class Comparison:
    """Pairs of texts, and what the request calls each side: the text at ``i`` of a list is ``name[i]``."""

    first: Sequence[str]  # one for each of ``second``, or one for all
    second: Sequence[str]
    names: tuple[str, str]

    def pairs(self) -> list[tuple[str, str]]:
        return [(self.first[number if len(self.first) > 1 else 0], text) for number, text in enumerate(self.second)]


class Scoring(Body):
    """What both requests have."""

    inert: ClassVar[fields.Inert] = fields.SCORING

    model: str
    truncate_prompt_tokens: Annotated[int, Field(ge=-1)] | None = None
    use_activation: bool | None = None
    user: str | None = None

    def longest(self, context: int) -> int | None:
        """Tokens that a text, or a pair, is to be cut to; ``None``: one that is too long is an error."""
        asked = self.truncate_prompt_tokens
        if asked is not None and (asked == 0 or asked > context):
            why = f"truncate_prompt_tokens must be from 1 to {context}, what the model reads, or -1 for that"
            raise RequestError(why, param="truncate_prompt_tokens")
        return context if asked == -1 else asked


class Document(Body):
    """A document as an object."""

    text: str


class RerankRequest(Scoring):
    """Body of ``POST /v1/rerank``."""

    query: str
    documents: Annotated[list[str | Document], OneFinding(), Field(min_length=1, max_length=MAX_TEXTS)]
    top_n: Annotated[int, Field(ge=0)] | None = None
    return_documents: bool | None = None

    def comparison(self) -> Comparison:
        return Comparison([self.query], self.texts(), ("query", "documents"))

    def texts(self) -> list[str]:
        return [document if isinstance(document, str) else document.text for document in self.documents]


class ScoreRequest(Scoring):
    """Body of ``POST /v1/score``: two fields of ``SIDES`` that go together, each a text or a list of them."""

    model_config = ConfigDict(json_schema_extra={"anyOf": [{"required": list(pair)} for pair in SIDES]})

    text_1: str | Strings | None = None
    text_2: str | Strings | None = None
    queries: str | Strings | None = None
    items: str | Strings | None = None
    documents: str | Strings | None = None
    data_1: str | Strings | None = None
    data_2: str | Strings | None = None

    @model_validator(mode="after")
    def _two_sides(self) -> Self:
        given = [name for name in dict.fromkeys(chain(*SIDES)) if getattr(self, name) is not None]
        if not given:
            raise fields.refused("missing_required_parameter", "text_1", "and text_2 are required")
        partners = [
            second if name == first else first
            for name in given[:1]
            for first, second in SIDES
            if name in (first, second)
        ]
        if len(given) == 1:
            why = f"is required: {given[0]} is compared with {' or '.join(partners)}"
            raise fields.refused("missing_required_parameter", partners[0], why)
        if len(given) > 2 or given[1] not in partners:
            raise fields.refused("invalid_value", given[-1], f"does not go with {' and '.join(given[:-1])}")
        return self

    def comparison(self) -> Comparison:
        """Raises ``RequestError`` when the two sides cannot be paired."""
        names = next(pair for pair in SIDES if all(getattr(self, name) is not None for name in pair))
        first, second = ([side] if isinstance(side := getattr(self, name), str) else side for name in names)
        for name, side in zip(names, (first, second), strict=True):
            if not side:
                raise RequestError(f"{name} is empty", param=name)
            if len(side) > MAX_TEXTS:
                raise RequestError(f"{name} has {len(side):,} texts, the limit is {MAX_TEXTS:,}", param=name)
        if len(first) not in (1, len(second)):
            why = f"{names[0]} has {len(first)} texts and {names[1]} {len(second)}; the first has 1, or as many"
            raise RequestError(why, param=names[0])
        return Comparison(first, second, names)


class RankedDocument(msgspec.Struct, frozen=True):
    text: str


class Ranked(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    index: int
    document: RankedDocument | None = None
    relevance_score: float


class Reranking(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    model: str
    usage: EmbeddingUsage
    results: list[Ranked]


class ScoreOfPair(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    object: Literal["score"] = "score"
    score: float


class ScoreList(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[ScoreOfPair]
    usage: EmbeddingUsage


def reranking(request: RerankRequest, scores: Sequence[float], tokens: int, identity: Identity) -> Reranking:
    """The best first, those of equal score in the order of the request."""
    order = sorted(range(len(scores)), key=lambda number: -scores[number])[: request.top_n or None]
    texts = request.texts()
    shown = request.return_documents is not False
    return Reranking(
        id=identity.id,
        model=identity.model,
        usage=EmbeddingUsage(tokens, tokens),
        results=[
            Ranked(index=at, document=RankedDocument(texts[at]) if shown else None, relevance_score=scores[at])
            for at in order
        ],
    )


def score_list(scores: Sequence[float], tokens: int, identity: Identity) -> ScoreList:
    """In the order of the request."""
    return ScoreList(
        id=identity.id,
        created=identity.created,
        model=identity.model,
        data=[ScoreOfPair(index=number, score=score) for number, score in enumerate(scores)],
        usage=EmbeddingUsage(tokens, tokens),
    )
