"""The loop of a process whose model is an encoder: no pages, no roles, nothing that outlives a step."""

import time
from typing import TYPE_CHECKING

from trimaran.base.errors import EngineDiedError, RequestError, TrimaranError
from trimaran.base.failures import failure_of
from trimaran.base.messages import BEAT_SECONDS, Cancel, Embed, FromEngine, Stop, Submit, ToEngine
from trimaran.engine.canary import Canary, Unwatched
from trimaran.engine.encoder import Encoder

if TYPE_CHECKING:
    from trimaran.engine.worker import Channel, Stopping


def serve_encoder(encoder: Encoder, channel: "Channel", stopping: "Stopping", canary: Canary | None = None) -> None:
    """Finish a step, receive, start the next one, send, until asked to stop and done with what runs."""
    watch = canary or Unwatched(encoder)
    channel.send([encoder.info])
    beat = time.monotonic()
    while stopping.at is None or not encoder.idle:
        encoder.finish()  # first: what has come while it ran is in the next step
        if stopping.due:
            encoder.cancel_all()
        wait = max(0.0, beat - time.monotonic()) if encoder.idle else 0.0
        replies = [reply for message in channel.receive(wait) if (reply := _take(encoder, message, stopping))]
        if stopping.at is None:
            watch.turn(time.monotonic())
        replies += watch.sift(encoder.step())
        if time.monotonic() >= beat:
            replies.append(watch.stats())
            beat = time.monotonic() + BEAT_SECONDS
        if replies:
            channel.send(replies)
        while not channel.flush(BEAT_SECONDS):
            if stopping.due:
                return


def _take(encoder: Encoder, message: ToEngine, stopping: "Stopping") -> FromEngine | None:
    """Hands one message to the encoder; a request that cannot be taken is answered at once."""
    match message:
        case Embed():
            try:
                if stopping.at is not None:
                    raise EngineDiedError("the engine is stopping")
                encoder.submit(message)
            except TrimaranError as error:
                return failure_of(message.id, error)
        case Submit():
            return failure_of(message.id, RequestError("this model makes vectors of texts, and no text", param="model"))
        case Cancel(id=request_id):
            encoder.cancel(request_id)
        case Stop(deadline=deadline):
            stopping.ask(deadline)
    return None
