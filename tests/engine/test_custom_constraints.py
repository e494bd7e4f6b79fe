"""Constraints of one's own, from an entry point to the tokens that they allow, and what happens when they fail."""

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import wait
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.server.byte_model import END, VOCAB, write_byte_model

from trimaran.base.grammar import Grammar
from trimaran.base.messages import Submit
from trimaran.base.sampling import SamplingParams
from trimaran.engine.constraints.protocol import TokenConstraint, Vocabulary
from trimaran.engine.engine import Engine
from trimaran.kernels.null import NullModel

from .driving import Answer, null_engine, run


class Countdown:
    """Allows tokens from ``argument`` on upwards, one fewer each time; complete after ``argument`` tokens."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.sizes: list[int] = []

    def start(self, prompt: Sequence[int], argument: Any) -> int:
        if not isinstance(argument, int):
            raise ValueError("the argument must be a number")
        if argument == 99:
            raise RuntimeError("a bug")
        return argument

    def advance(self, states: Sequence[int], tokens: Sequence[int]) -> list[int | None]:
        if 13 in states:
            raise RuntimeError("a bug in advance")
        assert all(token >= state for state, token in zip(states, tokens, strict=True))
        return [state - 1 or None for state in states]

    def mask(self, states: Sequence[int]) -> np.ndarray:
        if 17 in states:
            raise RuntimeError("a bug in mask")
        self.sizes.append(len(states))
        allowed = np.zeros((len(states), self.vocabulary.words * 32), bool)
        for row, state in enumerate(states):
            allowed[row, state : 90 if state < 90 else 0] = True
        return np.packbits(allowed, axis=1, bitorder="little").view(np.uint32)


class Broken(Countdown):
    def mask(self, states: Sequence[int]) -> np.ndarray:
        return np.ones((len(states), 1), np.uint32)


made: list[Countdown] = []


def countdown(vocabulary: Vocabulary) -> TokenConstraint[int]:
    made.append(Countdown(vocabulary))
    return made[-1]


def failing(vocabulary: Vocabulary) -> TokenConstraint[int]:
    raise RuntimeError("it does not even begin")


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    def offered(*, group: str) -> list[EntryPoint]:
        assert group == "trimaran.constraints"
        here = __name__
        return [
            EntryPoint("countdown", f"{here}:countdown", group),
            EntryPoint("broken", f"{here}:Broken", group),
            EntryPoint("failing", f"{here}:failing", group),
        ]

    monkeypatch.setattr("importlib.metadata.entry_points", offered)
    made.clear()
    null = NullModel(vocab=VOCAB, context=256, eos_id=END)
    engine = null_engine(null=null, model=str(write_byte_model(tmp_path)), seed=1)
    yield engine
    engine.close()


def asking(name: str, argument: Any, constraint: str = "countdown") -> Submit:
    grammar = Grammar("constraint", json.dumps({"name": constraint, "argument": argument}), "constraint")
    return Submit(name, [1, 2], SamplingParams(grammar=grammar, max_tokens=50))


def test_a_state_machine_says_what_comes_next(engine):
    answers = run(engine, *(asking(f"{n}", n) for n in range(1, 11)))
    for n in range(1, 11):
        answer = answers[f"{n}"]
        assert (len(answer.ids), answer.finish, answer.stopped_by) == (n, "stop", None)
        assert all(token >= n - place for place, token in enumerate(answer.ids))


def test_one_call_is_for_the_whole_step(engine):
    for n in range(10):
        engine.submit(asking(f"{n}", 12))
    wait([coming.future for coming in engine.constraints._coming.values()], 10)
    run(engine)
    assert len(made) == 1, "it is made once"
    assert made[0].sizes == [10] * 12


def test_it_gets_the_bytes_of_text_tokens(engine):
    run(engine, asking("a", 1))
    vocabulary = made[0].vocabulary
    assert vocabulary.tokens[0] == b" "
    assert vocabulary.tokens[END] == b""
    assert vocabulary.eos_ids == {END}


def failed(answer: Answer) -> tuple[str, str]:
    assert answer.failure is not None
    return answer.failure.kind, answer.failure.message


@pytest.mark.parametrize(
    ("submit", "kind", "why"),
    [
        (asking("bad", "many"), "RequestError", "constraint: the argument must be a number"),
        (asking("bad", 99), "ConstraintError", "'countdown' failed: RuntimeError"),
        (asking("bad", 13), "ConstraintError", "'countdown' failed: RuntimeError"),
        (asking("bad", 17), "ConstraintError", "'countdown' failed: RuntimeError"),
        (asking("bad", 95), "ConstraintError", "'countdown' failed: ValueError"),  # allows nothing
        (asking("bad", 1, "broken"), "ConstraintError", "'broken' failed: ValueError"),
        (asking("bad", 1, "failing"), "ConstraintError", "'failing' failed: RuntimeError"),
    ],
)
def test_a_failure_ends_its_own_request_alone(engine, submit, kind, why):
    answers = run(engine, asking("good", 10), submit, asking("fine", 12))
    found, message = failed(answers["bad"])
    assert found == kind
    assert why in message
    assert (len(answers["good"].ids), len(answers["fine"].ids)) == (10, 12)
