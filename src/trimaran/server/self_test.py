"""Before anything is served: a known prompt through every pair of workers, against the same workers alone.

Where both make the same pages (equal precisions), the tokens must be equal. Where they do not, the first token must be
the prefill worker's own, to the bit of its log-probability, since it alone computes that; and the distribution of the
second, the first that the decode worker computes on pages that were handed over and converted, must be near what one of
the two gives alone: at most ``MOST_KL`` nats from the nearer. Honest differences of precision are far smaller on
a prompt as plain as this one; pages that went to the wrong place give several nats.
"""

import asyncio
import math
import secrets

from trimaran.base import errors
from trimaran.base.failures import error_of
from trimaran.base.messages import Failed, Submit, Token, Tokens
from trimaran.base.sampling import MAX_LOGPROBS, SamplingParams
from trimaran.server.engine import EngineLink
from trimaran.server.router import Router
from trimaran.text.tokenizer import Tokenizer

MOST_KL = 0.5
LEAST = 1e-9  # of a probability
PROMPT = "The numbers in order: " + ", ".join(map(str, range(1, 101))) + ","
TOKENS = 4  # of an answer
SECONDS = 120.0  # for each answer


async def check_pools(router: Router, tokenizer: Tokenizer) -> None:
    """Raises ``EngineDiedError`` naming the workers that do not work together, and why."""
    context = min(worker.started.context for pool in (router.prefill, router.decode) for worker in pool.workers)
    prompt = tokenizer.encode(PROMPT)[: max(1, context - TOKENS)]
    alone = {link: await _alone(link, prompt) for link in router.links}
    for prefill, first in enumerate(router.prefill.workers):
        for decode, second in enumerate(router.decode.workers):
            together = await _together(router, prompt, prefill, decode)
            same = first.started.identity == second.started.identity
            if why := _difference(together, alone[first.link], alone[second.link], same=same):
                names = f"prefill worker {prefill} and decode worker {decode}"
                raise errors.EngineDiedError(f"the self-test of {names} failed: {why}")


def _difference(together: list[Token], prefill: list[Token], decode: list[Token], *, same: bool) -> str | None:
    """What is wrong with the tokens of both workers together, given those of each alone."""
    if same:
        return None if together == prefill else f"they give {_ids(together)}, one of them alone {_ids(prefill)}"
    if together[0] != prefill[0]:
        return f"the first token is {together[0].id}, that of the prefill worker alone {prefill[0].id}"
    near = [other for other in (prefill, decode) if other[0].id == together[0].id]
    distance = min(_divergence(other[1], together[1]) for other in near)
    if distance <= MOST_KL:
        return None
    return f"the second token is {distance:.2f} nats from that of the worker alone that is nearer; at most {MOST_KL:g}"


def _divergence(expected: Token, found: Token) -> float:
    """KL divergence in nats of two tokens' distributions, as far as their likeliest tokens tell. One that is likely in
    ``expected`` alone is at most as likely in ``found`` as the last that is named there, and as all that is not."""
    p, q = dict(expected.top or []), dict(found.top or [])
    unnamed = math.log(max(LEAST, 1 - sum(map(math.exp, q.values()))))
    most = min([unnamed, *q.values()])
    rest = max(LEAST, 1 - sum(map(math.exp, p.values())))
    left = max(LEAST, 1 - sum(math.exp(q.get(token, most)) for token in p))
    return sum(math.exp(p[token]) * (p[token] - q.get(token, most)) for token in p) + rest * math.log(rest / left)


def _ids(tokens: list[Token]) -> list[int]:
    return [token.id for token in tokens]


class _Answer:
    """Waits for the tokens of one request."""

    def __init__(self) -> None:
        self.tokens: list[Token] = []
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def hear(self, messages: list[Tokens | Failed]) -> None:
        for message in messages:
            if isinstance(message, Failed):
                self.fail(error_of(message))
            else:
                self.tokens += message.tokens
                if message.finish is not None and not self._done.done():
                    self._done.set_result(None)

    def fail(self, error: errors.TrimaranError) -> None:
        if not self._done.done():
            self._done.set_exception(error)

    async def wait(self) -> list[Token]:
        try:
            await asyncio.wait_for(self._done, SECONDS)
        except TimeoutError:
            raise errors.EngineDiedError(f"the self-test of the pools had no answer within {SECONDS:g} s") from None
        except errors.TrimaranError as error:
            raise errors.EngineDiedError(f"the self-test of the pools failed: {error}") from error
        return self.tokens


def _request(prompt: list[int]) -> Submit:
    sampling = SamplingParams(temperature=0, max_tokens=TOKENS, logprobs=MAX_LOGPROBS, ignore_eos=True)
    name = f"self-test-{secrets.token_hex(8)}"
    return Submit(name, prompt, sampling, salt=name)  # so that none finds the pages of another


async def _alone(link: EngineLink, prompt: list[int]) -> list[Token]:
    answer = _Answer()
    link.submit([_request(prompt)], answer)
    return await answer.wait()


async def _together(router: Router, prompt: list[int], prefill: int, decode: int) -> list[Token]:
    answer = _Answer()
    router.submit_to(_request(prompt), answer, prefill, decode)
    return await answer.wait()
