"""``POST /v1/embeddings``: texts, as text or ids, to vectors as lists of numbers or in base64."""

import base64
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from pydantic import Field

from trimaran.base.errors import RequestError
from trimaran.server.caller import Caller
from trimaran.server.embedding import EmbeddingPlane
from trimaran.server.openai import fields
from trimaran.server.openai.body import Body, Ids, OneFinding, Strings
from trimaran.server.openai.identity import Identity
from trimaran.text.encoder_tokenizer import EncoderTokenizer

if TYPE_CHECKING:
    from trimaran.server.embedding import Float32

MAX_TEXTS = 2048  # of one request, as in the OpenAI API


class EmbeddingRequest(Body):
    """Body of ``POST /v1/embeddings``."""

    inert = fields.VLLM_EMBEDDINGS

    model: str
    input: str | Ids | Annotated[list[Ids], OneFinding()] | Strings
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None
    user: str | None = None

    def texts(self) -> list[str | list[int]]:
        """One text per element, whichever of the four forms was sent; raises ``RequestError`` when there is none."""
        given = self.input
        if isinstance(given, str):
            return [given]
        if not given:
            raise RequestError("input is empty", param="input")
        if isinstance(given[0], int):
            return [given]  # a list whose first element is an id holds ids only
        if len(given) > MAX_TEXTS:
            raise RequestError(f"input has {len(given):,} texts, the limit is {MAX_TEXTS:,}", param="input")
        return list(given)


class Embedding(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingUsage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


def token_ids(request: EmbeddingRequest, tokenizer: EncoderTokenizer) -> list[list[int]]:
    """What the encoder reads. Ids are taken as they are: control tokens belong to them."""
    texts = request.texts()
    if isinstance(texts[0], str):
        return tokenizer.encode([text for text in texts if isinstance(text, str)])
    return [text for text in texts if not isinstance(text, str)]


async def answer(
    request: EmbeddingRequest, texts: list[list[int]], plane: EmbeddingPlane, identity: Identity, caller: Caller
) -> EmbeddingList:
    """Waits for all vectors."""
    width = plane.limits.width
    if request.dimensions is not None and request.dimensions > width:
        raise RequestError(f"dimensions must be at most {width}, what the model makes", param="dimensions")
    vectors = shortened(await plane.embed(texts, caller), request.dimensions or width)
    if request.encoding_format == "base64":
        shown: list[list[float] | str] = [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in vectors]
    else:
        shown = [row.tolist() for row in vectors]
    tokens = sum(map(len, texts))
    return EmbeddingList(
        data=[Embedding(index=number, embedding=row) for number, row in enumerate(shown)],
        model=identity.model,
        usage=EmbeddingUsage(tokens, tokens),
    )


def shortened(vectors: "Float32", dimensions: int) -> "Float32":
    """The first ``dimensions`` of each vector, as long as the whole one was: what the OpenAI API does."""
    if dimensions == vectors.shape[1]:
        return vectors
    import numpy as np

    cut = vectors[:, :dimensions]
    lengths = np.linalg.norm(cut, axis=1, keepdims=True)
    scaled: Float32 = cut * (np.linalg.norm(vectors, axis=1, keepdims=True) / np.maximum(lengths, 1e-12))
    return scaled
