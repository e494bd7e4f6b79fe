"""The one boundary where errors become answers: a status, a body in OpenAI's shape, and headers.

Shape: ``{"error": {"message", "type", "param", "code"}}`` (OpenAI API reference, "Errors"). ``code`` is for programs.
"""

import math
from dataclasses import dataclass, field

import msgspec

from trimaran.base import errors
from trimaran.server.tenants import RateLimitError

CODE = "trimaran.code"  # in the scope: the code of the error that a request ended with
INVALID = "invalid_request_error"
SERVER = "server_error"


class ErrorBody(msgspec.Struct, frozen=True):
    """What went wrong, as clients of the OpenAI API expect it."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorEnvelope(msgspec.Struct, frozen=True):
    error: ErrorBody


@dataclass(frozen=True)
class ErrorAnswer:
    """A complete error response; ``body`` is JSON."""

    status: int
    error: ErrorBody
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def body(self) -> bytes:
        return msgspec.json.encode(ErrorEnvelope(self.error))


class ModelNotFoundError(errors.RequestError):
    """The request names a model that this server does not serve."""

    code = "model_not_found"


class DrainingError(errors.TrimaranError):
    """The server is stopping and admits nothing new."""


class DeadlineError(errors.TrimaranError):
    """The request was not done within the server's time limit."""


class StorageError(errors.TrimaranError):
    """Files and batches cannot be kept: another server has their folder, or the disk is full or broken."""


class FileNotKnownError(ModelNotFoundError):
    """No file has this id: it never had, was deleted, has expired, or is another tenant's."""

    code = "file_not_found"


class BatchNotKnownError(ModelNotFoundError):
    """No batch has this id: it never had, ended long ago, or is another tenant's."""

    code = "batch_not_found"


class TooManyConnectionsError(errors.TrimaranError):
    """The server has as many connections as it may."""


class BodyTooLargeError(errors.TrimaranError):
    """The request's body exceeds the limit."""


class BodyTimeoutError(errors.TrimaranError):
    """The request's body did not arrive in time."""


def answer(error: BaseException) -> ErrorAnswer:
    """Translates any exception; what is not ours becomes a 500 that tells nothing of the inside."""
    text = str(error)
    match error:
        case ModelNotFoundError():
            return ErrorAnswer(404, ErrorBody(text, INVALID, error.param, error.code))
        case errors.RequestError():
            return ErrorAnswer(400, ErrorBody(text, INVALID, error.param, error.code))
        case errors.UnsupportedError():
            return ErrorAnswer(400, ErrorBody(text, INVALID, code="unsupported"))
        case errors.QueueFullError():
            seconds = str(max(1, math.ceil(error.retry_after)))
            return ErrorAnswer(429, ErrorBody(text, "rate_limit_error", code="queue_full"), {"retry-after": seconds})
        case RateLimitError():
            seconds = str(max(1, math.ceil(error.retry_after)))
            return ErrorAnswer(429, ErrorBody(text, "rate_limit_error", code=error.code), {"retry-after": seconds})
        case TooManyConnectionsError():
            return ErrorAnswer(
                503, ErrorBody(text, SERVER, code="connections"), {"retry-after": "1", "connection": "close"}
            )
        case BodyTooLargeError():
            return ErrorAnswer(413, ErrorBody(text, INVALID, code="body_too_large"), {"connection": "close"})
        case BodyTimeoutError():
            return ErrorAnswer(408, ErrorBody(text, INVALID, code="body_timeout"), {"connection": "close"})
        case DrainingError():
            return ErrorAnswer(
                503, ErrorBody(text, SERVER, code="stopping"), {"retry-after": "1", "connection": "close"}
            )
        case errors.EngineDiedError():
            return ErrorAnswer(503, ErrorBody(text, SERVER, code="engine_unavailable"), {"retry-after": "1"})
        case errors.CanaryError():
            return ErrorAnswer(503, ErrorBody(text, SERVER, code="canary_deviated"))
        case errors.NumericsError():
            return ErrorAnswer(500, ErrorBody(text, SERVER, code="not_finite"))
        case errors.PageIntegrityError():
            return ErrorAnswer(500, ErrorBody(text, SERVER, code="page_integrity"))
        case errors.ConstraintError():
            return ErrorAnswer(500, ErrorBody(text, SERVER, code="constraint_failed"))
        case StorageError():
            return ErrorAnswer(503, ErrorBody(text, SERVER, code="storage_unavailable"), {"retry-after": "5"})
        case DeadlineError():
            return ErrorAnswer(504, ErrorBody(text, SERVER, code="deadline_exceeded"))
        case _:
            return ErrorAnswer(
                500, ErrorBody("internal error; the server's log has the details", SERVER, code="internal_error")
            )


def http_error(status: int, message: str, *, headers: dict[str, str] | None = None) -> ErrorAnswer:
    """The answer for an error that HTTP itself defines: no such route, no such method, no key."""
    codes = {401: "invalid_api_key", 404: "not_found", 405: "method_not_allowed"}
    kind = INVALID if status < 500 else SERVER
    return ErrorAnswer(status, ErrorBody(message, kind, code=codes.get(status)), headers or {})
