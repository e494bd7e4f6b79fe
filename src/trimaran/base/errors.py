"""Every error that Trimaran raises for a caller or for the world outside.

Bugs of ours are ``assert``; everything a user can cause is one of these. They are translated into a protocol's own
shape at one boundary (``server/errors.py``), and the CLI prints their text without a traceback.
"""


class TrimaranError(Exception):
    """Root of all errors that are not bugs."""


class ConfigError(TrimaranError):
    """An option, environment variable or configuration file is wrong; the text names it and says what is allowed."""


class SourceError(TrimaranError):
    """A model cannot be found, downloaded or verified."""


class OfflineError(SourceError):
    """The model is not in the cache and the network may not be used."""


class CheckpointError(TrimaranError):
    """A model file is damaged, has an unknown format, or a tensor is missing, left over or misshapen."""


class IntegrityError(CheckpointError):
    """A model's files are not those that its manifest lists: the text names each, and nothing of them may be served."""


class UnsupportedError(TrimaranError):
    """The request or model needs something that this executor, format or machine does not offer."""


class RequestError(TrimaranError):
    """A request is invalid. ``param`` names the field at fault, ``code`` is stable for programs."""

    code = "invalid_value"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        if code is not None:
            self.code = code


class ContextLengthError(RequestError):
    """The prompt, or the prompt and ``max_tokens`` together, exceed the model's context."""

    code = "context_length_exceeded"


class QueueFullError(TrimaranError):
    """The engine has as many waiting requests as it may hold; try again after ``retry_after`` seconds."""

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TransferError(TrimaranError):
    """Pages of one executor did not become another's: they do not fit it, or their way there failed. Nothing that is
    read has been written."""


class PeerError(TrimaranError):
    """Two engines that cannot work together: key, protocol, model or layout differ. The text has both sides' values."""


class NumericsError(TrimaranError):
    """The model produced NaN or infinity for this request; its neighbours are not affected."""


class PageIntegrityError(TrimaranError):
    """A page of this request's cache turned out not to be its own; nothing was read from it, neighbours go on."""


class ConstraintError(TrimaranError):
    """A constraint that somebody else wrote failed while it followed this request."""


class CanaryError(TrimaranError):
    """A prompt whose logits are known came out otherwise: weights, memory or processor cannot be trusted."""


class EngineDiedError(TrimaranError):
    """The engine process ended or stopped answering; requests in flight are lost."""
