"""Errors across the wire: an exception as a ``Failed`` message, and back."""

from trimaran.base import errors
from trimaran.base.messages import Failed


def failure_of(request_id: str, error: errors.TrimaranError) -> Failed:
    """The message that ends a request with ``error``."""
    return Failed(
        request_id,
        kind=type(error).__name__,
        message=str(error),
        param=getattr(error, "param", None),
        code=getattr(error, "code", None),
        retry_after=getattr(error, "retry_after", None),
    )


def error_of(message: Failed) -> errors.TrimaranError:
    """The exception that ``message`` tells of."""
    kind: type = getattr(errors, message.kind, errors.TrimaranError)
    assert issubclass(kind, errors.TrimaranError)
    if issubclass(kind, errors.QueueFullError):
        return kind(message.message, retry_after=message.retry_after or 1.0)
    if issubclass(kind, errors.RequestError):
        return kind(message.message, param=message.param, code=message.code)
    return kind(message.message)
