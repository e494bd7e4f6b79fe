"""The data plane of an encoder: token ids in, vectors out."""

import asyncio
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trimaran.base import errors
from trimaran.base.failures import error_of
from trimaran.base.messages import Embed, Embedded, Failed, Score
from trimaran.server.admission import Admission
from trimaran.server.caller import Caller
from trimaran.server.engine import EngineLink
from trimaran.server.errors import DeadlineError
from trimaran.server.metrics import Metrics
from trimaran.text.encoder_tokenizer import EncoderTokenizer

if TYPE_CHECKING:  # imported by those who serve an encoder: it takes a tenth of a second of every start
    import numpy as np
    import numpy.typing as npt

    Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class EncoderLimits:
    """What one server takes on: requests in flight, tokens of a text, ids, seconds per request."""

    max_inflight: int
    max_running: int
    context: int
    vocab: int
    width: int  # of a vector
    score: Score | None = None  # of a model that reads pairs of texts, and makes one logit of each
    deadline: float | None = None


class EmbeddingPlane(Admission):
    """Admits, runs and ends requests over one link to an encoder. Use it from one event loop."""

    def __init__(self, link: EngineLink, tokenizer: EncoderTokenizer, limits: EncoderLimits, metrics: Metrics) -> None:
        import numpy as np  # noqa: F401, so that the first request need not wait for it

        super().__init__(link, metrics, max_inflight=limits.max_inflight, max_running=limits.max_running)
        self.tokenizer = tokenizer
        self.limits = limits
        self._encoder = link

    async def embed(
        self, texts: list[list[int]], caller: Caller, *, names: Sequence[str] = (), seconds: list[int] | None = None
    ) -> "Float32":
        """Vectors ``[texts, width]`` of what ``caller`` asked.

        ``names`` are what the request calls the texts, by default ``input[i]``; ``seconds`` are those of ``Embed``.

        Raises ``RequestError``, ``QueueFullError``, ``DrainingError``, ``DeadlineError``, ``EngineDiedError`` or what
        the encoder says. A caller that is cancelled takes its request with it.
        """
        for number, tokens in enumerate(texts):
            name = names[number] if names else f"input[{number}]" if len(texts) > 1 else "input"
            self.require_fits(name, tokens)
        message = Embed(secrets.token_hex(8), texts, caller.priority(), seconds)
        waiting = _Waiting(asyncio.get_running_loop().create_future())
        self.admit(waiting, 1)
        caller.tenant.spend(sum(map(len, texts)))
        try:
            self._encoder.submit([message], waiting)
            async with asyncio.timeout(self.limits.deadline):
                answer = await waiting.answer
        except TimeoutError:
            raise DeadlineError(f"the request was not done within {self.limits.deadline:g} s") from None
        except asyncio.CancelledError:
            if not caller.later:
                self.metrics.cancelled.inc()
            raise
        finally:
            self._encoder.cancel([message.id])
            self.release(waiting, 1)
            if not caller.later:
                self.took(time.perf_counter() - caller.arrived)
        import numpy as np

        return np.frombuffer(answer.vectors, "<f4").reshape(len(texts), self.limits.width).astype(np.float32)

    def require_fits(self, name: str, tokens: list[int]) -> None:
        """Raises ``RequestError`` unless the model can read ``tokens``, a text that the request calls ``name``."""
        param = name.partition(" ")[0]  # of a pair, the second text
        if not tokens:
            raise errors.RequestError(f"{name} has no tokens", param=param)
        if len(tokens) > self.limits.context:
            raise errors.ContextLengthError(
                f"{name} has {len(tokens)} tokens, control tokens included; the model reads {self.limits.context}",
                param=param,
            )
        if not 0 <= min(tokens) <= max(tokens) < self.limits.vocab:
            raise errors.RequestError(f"token ids must be from 0 to {self.limits.vocab - 1}", param=param)


@dataclass(eq=False)
class _Waiting:
    """Whoever waits for the one answer to a request."""

    answer: asyncio.Future[Embedded]

    def hear(self, messages: list[Embedded | Failed]) -> None:
        for message in messages:
            if isinstance(message, Failed):
                self.fail(error_of(message))
            elif not self.answer.done():
                self.answer.set_result(message)

    def fail(self, error: errors.TrimaranError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
