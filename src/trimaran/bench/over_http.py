"""An OpenAI server as a subject, ours or another's: what arrives at a client, everything included."""

import asyncio
from collections.abc import Sequence

import uvloop

from trimaran.base.errors import UnsupportedError
from trimaran.bench.arrivals import Job
from trimaran.bench.cases import Case, Decode, EndToEnd, Mixed, Prefill
from trimaran.bench.exchange import Timing
from trimaran.bench.load import Target, load
from trimaran.bench.served import Served


class OverHttp:
    """A server that runs at ``url``. Prompts are random token ids, streams never end early if it knows ignore_eos.

    A prefill is the time to the first token, from sending; a batch is the time from the first sending to the last end.
    Decode counts the tokens that come while all streams run: from the last one's first to the first one's last.
    """

    def __init__(self, name: str, url: str, vocab: int) -> None:
        self.name, self.url = name, url
        self._target = Target(url, vocab=vocab, ignore_eos=True)
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)

    def measure(self, case: Case) -> float | None:
        match case:
            case Prefill(tokens):
                [timing] = self._load([Job(tokens, 1)])
                return tokens / timing.ttft
            case Decode(depth, _, sequences):
                return rate_together(self._load([Job(depth, case.limit)] * sequences))
            case EndToEnd(sequences, prompt, output):
                return whole_rate(self._load([Job(prompt, output)] * sequences))
            case Mixed():
                return whole_rate(self._load([Job(*lengths) for lengths in case.lengths()]))

    def close(self) -> None:
        self._runner.close()

    def _load(self, jobs: Sequence[Job]) -> list[Timing]:
        loaded = self._runner.run(load(self._target, jobs, concurrency=len(jobs)))
        if loaded.interrupted:
            raise KeyboardInterrupt
        if errors := [timing.error for timing in loaded.timings if timing.error]:
            raise UnsupportedError(f"{self.name} failed {len(errors)} of {len(jobs)} requests: {errors[0]}")
        return loaded.timings


class OwnServer(OverHttp):
    """``trimaran serve`` as a process of its own, started here with ``flags``."""

    def __init__(self, model: str, flags: Sequence[str], vocab: int) -> None:
        self._server = Served(model, flags)
        runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        try:
            runner.run(self._server.__aenter__())
        except BaseException:
            runner.close()
            raise
        super().__init__("http", self._server.url, vocab)
        self._runner = runner

    @property
    def pid(self) -> int:
        """Of the server; the engine is its child."""
        return self._server.pid

    def close(self) -> None:
        if self._server.exit_code is None:
            self._runner.run(self._server.__aexit__(None, None, None))
        super().close()


def whole_rate(timings: Sequence[Timing]) -> float:
    """Tokens a second from the first sending to the last end."""
    seconds = max(timing.ended for timing in timings) - min(timing.sent for timing in timings)
    return sum(timing.tokens for timing in timings) / seconds


def rate_together(timings: Sequence[Timing]) -> float | None:
    """Tokens a second while every stream runs; None when there is no such time."""
    if not all(timing.pieces for timing in timings):
        return None
    start, end = max(timing.pieces[0] for timing in timings), min(timing.pieces[-1] for timing in timings)
    if end <= start:
        return None
    # A piece is a token, unless the server sends several at once or holds back half a character.
    tokens = [timing.tokens / len(timing.pieces) * sum(start < at <= end for at in timing.pieces) for timing in timings]
    return sum(tokens) / (end - start)
