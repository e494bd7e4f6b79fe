"""What clients ask of files and batches, checked: bodies, form fields and queries, each unknown one refused by name."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from trimaran.base.env import nearest
from trimaran.base.errors import RequestError
from trimaran.server.openai.body import Body, values_of

Endpoint = Literal[
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/rerank", "/v1/score"
]
LEAST_KEPT, MOST_KEPT = 3600, 30 * 86_400  # seconds for which a client may have a file kept
MOST_WINDOW = 30 * 86_400
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_METADATA = {"pairs": 16, "key": 64, "value": 512}


class ExpiresAfter(Body):
    """When a file expires: so many seconds after it was made."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=LEAST_KEPT, le=MOST_KEPT)]


class BatchRequest(Body):
    """Body of ``POST /v1/batches``."""

    input_file_id: str
    endpoint: Endpoint
    completion_window: str
    metadata: Annotated[dict[str, str], values_of(str, "a string")] | None = None
    output_expires_after: ExpiresAfter | None = None

    @property
    def window(self) -> int:
        """The completion window in seconds; raises ``RequestError``."""
        found = re.fullmatch(r"([1-9]\d{0,6})([smhd])", self.completion_window)
        seconds = int(found[1]) * _UNITS[found[2]] if found else 0
        if not 0 < seconds <= MOST_WINDOW:
            raise RequestError(
                f"completion_window is {self.completion_window!r:.20}; it is a number and s, m, h or d, such as '24h', "
                "at most '30d'",
                param="completion_window",
            )
        return seconds

    def require_labels(self) -> None:
        """Raises ``RequestError`` when ``metadata`` is larger than the OpenAI API takes."""
        for key, value in (self.metadata or {}).items():
            if len(key) > _METADATA["key"] or len(value) > _METADATA["value"]:
                raise RequestError("metadata has keys of at most 64 characters and values of 512", param="metadata")
        if len(self.metadata or {}) > _METADATA["pairs"]:
            raise RequestError("metadata has at most 16 pairs", param="metadata")


@dataclass(frozen=True)
class Page:
    """A part of a list."""

    after: str | None
    limit: int
    newest_first: bool = True
    purpose: str | None = None


def page(query: Sequence[tuple[str, str]], known: Sequence[str], default: int, most: int) -> Page:
    """What a list is asked for; raises ``RequestError``."""
    given: dict[str, str] = {}
    for name, value in query:
        if name not in known:
            raise RequestError(
                f"{name!r:.80} is no parameter of this list{nearest(name, known)}", param=name, code="unknown_parameter"
            )
        given[name] = value
    limit = given.get("limit", str(default))
    if not re.fullmatch(r"[1-9]\d{0,6}", limit) or int(limit) > most:
        raise RequestError(f"limit is from 1 to {most}", param="limit")
    order, purpose = given.get("order", "desc"), given.get("purpose")
    if order not in ("asc", "desc"):
        raise RequestError("order is asc or desc", param="order")
    return Page(given.get("after"), int(limit), order == "desc", purpose)


def kept_seconds(form: Mapping[str, str], default: int) -> int:
    """For how long an uploaded file is kept; raises ``RequestError``."""
    anchor, seconds = form.get("expires_after[anchor]"), form.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return default
    if anchor != "created_at":
        raise RequestError("expires_after[anchor] is 'created_at'", param="expires_after[anchor]")
    if seconds is None:
        why = "expires_after[seconds] is required beside expires_after[anchor]"
        raise RequestError(why, param="expires_after[seconds]", code="missing_required_parameter")
    if not re.fullmatch(r"\d{1,9}", seconds) or not LEAST_KEPT <= int(seconds) <= MOST_KEPT:
        why = f"expires_after[seconds] is from {LEAST_KEPT} to {MOST_KEPT}"
        raise RequestError(why, param="expires_after[seconds]")
    return int(seconds)


def require_purpose(form: Mapping[str, str]) -> None:
    """Raises ``RequestError`` unless the file is for a batch."""
    purpose = form.get("purpose")
    if purpose is None:
        raise RequestError("purpose is required: 'batch'", param="purpose", code="missing_required_parameter")
    if purpose != "batch":
        raise RequestError(f"purpose is {purpose!r:.40}; files here are for 'batch'", param="purpose")
