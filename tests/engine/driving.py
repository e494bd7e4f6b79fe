"""Makes engines without a model and runs requests to their end."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from trimaran.base.formats import KVFormat
from trimaran.base.messages import Failed, FromEngine, Submit, Token, Tokens
from trimaran.base.sampling import SamplingParams
from trimaran.engine.config import EngineConfig
from trimaran.engine.engine import Engine
from trimaran.engine.load import load_engine
from trimaran.kernels.null import NullModel

PAGE = 16


def null_engine(*, context: int = 256, vocab: int = 512, pages: int | None = None, **options: Any) -> Engine:
    """An engine on the null executor; ``pages`` bounds the memory, in pages of all cache groups together."""
    null = options.pop("null", NullModel(vocab=vocab, context=context))
    if pages is not None:
        size = options.get("page_size", PAGE)
        page_bytes = sum(group.page_bytes(KVFormat.BF16, size) for group in null.program().groups)
        options["kv_memory_bytes"] = pages * page_bytes
    return load_engine(EngineConfig(executor="null", null=null, **options))


def greedy(max_tokens: int = 16, **options: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, **options)


@dataclass
class Answer:
    tokens: list[Token] = field(default_factory=list)
    finish: str | None = None
    stopped_by: int | None = None
    cached: int = 0
    failure: Failed | None = None

    @property
    def ids(self) -> list[int]:
        return [token.id for token in self.tokens]


class Answers(dict[str, Answer]):
    """Collects messages, and holds the engine to its word: nothing for a request after its end."""

    def take(self, messages: Iterable[FromEngine]) -> None:
        for message in messages:
            assert isinstance(message, Tokens | Failed)
            answer = self.setdefault(message.id, Answer())
            assert (answer.finish, answer.failure) == (None, None), f"{message} came after the end"
            if isinstance(message, Failed):
                answer.failure = message
                continue
            answer.tokens += message.tokens
            answer.finish, answer.stopped_by, answer.cached = message.finish, message.stopped_by, message.cached


def run(engine: Engine, *requests: Submit, most_steps: int = 5000) -> Answers:
    """Submits requests and steps until the engine is idle."""
    answers = Answers()
    for request in requests:
        engine.submit(request)
    for _ in range(most_steps):
        if engine.idle:
            return answers
        answers.take(engine.step())
    raise AssertionError(f"not idle after {most_steps} steps: {engine.stats()}")
