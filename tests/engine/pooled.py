"""Two engines in one process, one that prefills and one that decodes, with nothing between them but arrays."""

from dataclasses import dataclass, field

from msgspec import structs

from trimaran.base.messages import Failed, Submit, Tokens
from trimaran.engine.decoding import DecodeEngine, Expected
from trimaran.engine.engine import Engine
from trimaran.engine.prefilling import Handing, PrefillEngine

from .driving import Answers


@dataclass
class _Way:
    """A prompt under way: how many pages of each cache group have been exported."""

    expected: Expected
    handing: Handing
    sent: list[int]


@dataclass
class Pair:
    """Hands over page by page, after every step of the engine that prefills."""

    prefill: PrefillEngine
    decode: DecodeEngine
    answers: Answers = field(default_factory=Answers)
    moved: int = 0  # pages

    def __post_init__(self) -> None:
        self._ways: dict[str, _Way] = {}
        self._submits: dict[str, Submit] = {}
        self.decode.placed = self._placed

    def submit(self, request: Submit, source: str = "prefill") -> None:
        self._submits[request.id] = request
        self.decode.admit(request, self.prefill.info.identity, 60.0, source)

    def step(self) -> None:
        self.answers.take(self.decode.step())
        messages = self.prefill.step()
        for message in messages:
            if isinstance(message, Failed):
                self.decode.cancel(message.id)
        self.prefill.finish()
        self.decode.finish()
        for name, way in list(self._ways.items()):
            self._move(name, way)

    def run(self, *requests: Submit, most_steps: int = 5000) -> Answers:
        for request in requests:
            self.submit(request)
        for _ in range(most_steps):
            if self.decode.idle and self.prefill.idle:
                break
            self.step()
        else:
            raise AssertionError(f"not idle: {self.decode.stats()} {self.prefill.stats()}")
        for engine in (self.prefill, self.decode):
            check_whole(engine)
        return self.answers

    def cancel(self, request_id: str) -> None:
        self._ways.pop(request_id, None)
        self.decode.cancel(request_id)
        self.prefill.release(request_id)

    def _placed(self, expected: Expected) -> Tokens:
        request = self._submits[expected.sequence.id]
        seed = expected.key if expected.key < 2**63 else expected.key - 2**64
        request = structs.replace(request, sampling=structs.replace(request.sampling, seed=seed))
        handing = self.prefill.prefill(request, expected.firsts, 60.0)
        self._ways[request.id] = _Way(expected, handing, list(expected.firsts))
        return Tokens(request.id, [])

    def _move(self, name: str, way: _Way) -> None:
        if way.handing.lost or not self.decode.expects(name):
            del self._ways[name]
            self.prefill.release(name)
            return
        end = self.prefill.complete(way.handing)
        for group, first in enumerate(way.sent):
            if end > first:
                data = self.prefill.export(way.handing, group, first, end, self.decode.executor.layout.page_format)
                begin = way.expected.firsts[group]
                refs = way.expected.refs[group][first - begin : end - begin]
                self.decode.handover.take(name, group, refs, way.expected.sequence.owner, data)
                self.moved += end - first
                way.sent[group] = end
        if way.handing.token is not None:
            self.decode.adopt(name, way.handing.token, way.handing.sequence.cached or 0)
            self.prefill.release(name)
            del self._ways[name]


def check_whole(engine: Engine) -> None:
    """Asserts that nothing holds a page, and that the books are right."""
    engine.cache.check()
    assert engine.cache.unused
    assert not engine.leases
