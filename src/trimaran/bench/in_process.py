"""The engine as a subject: requests in, tokens out, in this process; everything but HTTP and text."""

import time
from collections.abc import Iterable

import numpy as np

from trimaran.base.errors import TrimaranError
from trimaran.base.messages import Failed, FromEngine, Submit, Tokens
from trimaran.base.sampling import SamplingParams
from trimaran.bench.cases import Case, Decode, EndToEnd, Mixed, Prefill
from trimaran.engine.engine import Engine


class InProcessEngine:
    """Drives an engine with random prompts, so that no prompt meets the prefix cache; takes ownership of it."""

    name = "engine"

    def __init__(self, engine: Engine, vocab: int) -> None:
        self.engine = engine
        self._vocab = vocab
        self._random = np.random.default_rng()
        self._submitted = 0

    def measure(self, case: Case) -> float | None:
        match case:
            case Prefill(tokens):
                return tokens / self._serve([(tokens, 1)])
            case Decode():
                return self.decode(case)
            case EndToEnd(sequences, prompt, output):
                return case.counted / self._serve([(prompt, output)] * sequences)
            case Mixed():
                return case.counted / self._serve(case.lengths())

    def close(self) -> None:
        self.engine.close()

    def _serve(self, lengths: Iterable[tuple[int, int]]) -> float:
        """Seconds until requests of these (prompt, output) lengths, all submitted at once, are done."""
        prompts = [(self._prompt(prompt), output) for prompt, output in lengths]
        began = time.perf_counter()
        for prompt, output in prompts:
            self._submit(prompt, output)
        while not self.engine.idle:
            _check(self.engine.step())
        return time.perf_counter() - began

    def decode(self, case: Decode) -> float:
        """Tokens a second of all sequences, over the steps from the first in which every one decodes."""
        waiting = {self._submit(self._prompt(case.depth), case.limit) for _ in range(case.sequences)}
        while waiting:
            waiting.difference_update(_check(self.engine.step()))
        began = time.perf_counter()
        for _ in range(case.steps):
            produced = _check(self.engine.step())
            assert len(produced) == case.sequences, "every sequence decodes in every step"
        seconds = time.perf_counter() - began
        self.engine.cancel_all()
        self.engine.step()
        return case.sequences * case.steps / seconds

    def _submit(self, prompt: list[int], output: int) -> str:
        self._submitted += 1
        name = str(self._submitted)
        sampling = SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True)
        self.engine.submit(Submit(name, prompt, sampling))
        return name

    def _prompt(self, tokens: int) -> list[int]:
        prompt: list[int] = self._random.integers(3, self._vocab, tokens).tolist()
        return prompt


def _check(messages: list[FromEngine]) -> set[str]:
    """The requests that got tokens; raises when one failed."""
    for message in messages:
        if isinstance(message, Failed):
            raise TrimaranError(f"the engine failed a request: {message.kind}: {message.message}")
    return {message.id for message in messages if isinstance(message, Tokens) and message.tokens}
