"""Routes that models of another kind have: a 400 that says what the model here has instead."""

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict
from starlette.requests import Request
from starlette.responses import Response

from trimaran.base.errors import UnsupportedError
from trimaran.server.api import Api
from trimaran.server.openai.identity import ModelCard

TEXT = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/tokenize",
    "/detokenize",
)


class Refused(BaseModel):
    """All that is read of a request that the model cannot answer, whatever else it asks for."""

    model_config = ConfigDict(strict=True)

    model: str


def refuse(api: Api, card: ModelCard, paths: Sequence[str], why: str) -> None:
    """Adds a ``POST`` route for each of ``paths``; ``why`` goes on from the model's name."""

    async def refused(request: Request, body: Refused) -> Response:  # noqa: ARG001, as every JsonRoute
        card.require(body.model)
        raise UnsupportedError(f"{body.model} {why}")

    for path in paths:
        api.post(path)(refused)
