"""A run between a link that says what the test says and a reader that may be behind."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from trimaran.base.errors import EngineDiedError, NumericsError, TrimaranError
from trimaran.base.failures import failure_of
from trimaran.base.messages import BACKGROUND, Failed, Submit, Token, Tokens
from trimaran.base.sampling import SamplingParams
from trimaran.checkpoint import open_checkpoint
from trimaran.server.caller import Caller
from trimaran.server.dataplane import DataPlane, Generation, Limits, Run
from trimaran.server.metrics import Metrics
from trimaran.server.tenants import Tenant, TenantLimits
from trimaran.text.choice import Piece
from trimaran.text.tokenizer import Tokenizer, open_tokenizer

from .byte_model import CHARACTERS, VOCAB

TENANT = Tenant("x", TenantLimits())


class Link:
    """Takes requests and forgets them."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.priorities: list[int] = []
        self.cancelled: list[str] = []

    def submit(self, requests: Iterable[Submit], listener: Any) -> None:
        for request in requests:
            self.ids.append(request.id)
            self.priorities.append(request.priority)

    def cancel(self, ids: Iterable[str]) -> None:
        self.cancelled += ids


@pytest.fixture(scope="module")
def tokenizer(byte_model) -> Tokenizer:
    with open_checkpoint(byte_model) as checkpoint:
        return open_tokenizer(checkpoint)


class Reader:
    """Reads a run of two choices in a task; while ``behind``, one piece of news at a time and only when ``let``."""

    def __init__(self, tokenizer: Tokenizer, *, behind: bool) -> None:
        self.link = Link()
        plane = DataPlane(self.link, tokenizer, Limits(64, 64, 2048, VOCAB), Metrics())
        self.run: Run = plane.open(Generation(([1],), SamplingParams(max_tokens=9, n=2)), Caller(0.0, TENANT))
        self.texts = ["", ""]
        self.error: TrimaranError | None = None
        self._ready = asyncio.Event()
        self._behind = behind
        self.task = asyncio.create_task(self._read())

    def let(self) -> None:
        self._ready.set()

    async def _read(self) -> None:
        try:
            async with self.run:
                await self.run.deliver(self._take, self._ready.wait)
        except TrimaranError as error:
            self.error = error

    def _take(self, pieces: list[Piece]) -> bool:
        for piece in pieces:
            self.texts[piece.choice] += piece.text
        return not self._behind

    def says(self, choice: int, text: str) -> Tokens:
        return Tokens(self.link.ids[choice], [Token(CHARACTERS.index(char)) for char in text])

    def fails(self, choice: int) -> Failed:
        return failure_of(self.link.ids[choice], NumericsError("no numbers"))


@pytest.mark.parametrize("behind", [False, True])
async def test_what_came_before_a_failure_is_handed_over(tokenizer, behind):
    reader = Reader(tokenizer, behind=behind)
    await asyncio.sleep(0)
    reader.run.hear([reader.says(0, "a"), reader.says(1, "b")])
    reader.run.hear([reader.says(0, "c"), reader.fails(1), reader.says(0, "never")])
    reader.let()
    await reader.task
    assert reader.texts == ["ac", "b"]
    assert isinstance(reader.error, NumericsError)
    assert sorted(reader.link.cancelled) == sorted(reader.link.ids)


@pytest.mark.parametrize("behind", [False, True])
async def test_what_came_before_the_engine_died_is_handed_over(tokenizer, behind):
    reader = Reader(tokenizer, behind=behind)
    await asyncio.sleep(0)
    reader.run.hear([reader.says(0, "a")])
    reader.run.hear([reader.says(1, "b")])
    reader.run.fail(EngineDiedError("first"))
    reader.run.fail(EngineDiedError("second"))
    reader.let()
    await reader.task
    assert reader.texts == ["a", "b"]
    assert "first" in str(reader.error)


async def test_a_later_request_is_behind_all_others_and_in_no_histogram(tokenizer):
    link, metrics = Link(), Metrics()
    plane = DataPlane(link, tokenizer, Limits(64, 64, 2048, VOCAB), metrics)
    generation = Generation(([1],), SamplingParams(max_tokens=1), priority=2**31 - 1)
    for later in (False, True):
        async with plane.open(generation, Caller(0.0, TENANT, later=later)) as run:
            run.hear([Tokens(link.ids[-1], [Token(1)], finish="length")])
            await run.deliver(lambda _: True, _never)
    assert link.priorities[0] == 2**31 - 1 < BACKGROUND <= link.priorities[1]
    for name in ("request", "time_to_first_token"):
        assert metrics.registry.get_sample_value(f"trimaran_{name}_seconds_count") == 1


async def _never() -> None:
    raise AssertionError
