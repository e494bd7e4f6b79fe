"""The engine of an encoder: queueing, steps that mix requests, cancelling, and what it refuses."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.models.tiny_bert import SCORER, write_bert

from trimaran.base.errors import (
    CanaryError,
    ConfigError,
    ContextLengthError,
    QueueFullError,
    RequestError,
    UnsupportedError,
)
from trimaran.base.messages import Embed, Embedded, FromEngine
from trimaran.engine.canary import Canary
from trimaran.engine.config import EngineConfig
from trimaran.engine.encoder import Encoder
from trimaran.engine.load import load_any, load_engine

WIDTH = 64


def opened(folder: Path, **options: object) -> Encoder:
    given = {"executor": "native", "threads": 1, "max_num_batched_tokens": 160, "max_num_seqs": 3, **options}
    encoder = load_any(EngineConfig.from_json({"model": str(folder), **given}))
    assert isinstance(encoder, Encoder)
    return encoder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture
def encoder(folder: Path) -> Iterator[Encoder]:
    encoder = opened(folder, max_waiting=4)
    yield encoder
    encoder.close()


def drained(encoder: Encoder) -> list[FromEngine]:
    messages: list[FromEngine] = []
    for _ in range(100):
        messages += encoder.step()
        if encoder.idle:
            return messages
    raise AssertionError("it does not end")


def vectors(messages: list[FromEngine]) -> dict[str, np.ndarray]:
    made = {}
    for message in messages:
        assert isinstance(message, Embedded), message
        made[message.id] = np.frombuffer(message.vectors, "<f4").reshape(-1, WIDTH)
    return made


@pytest.mark.parametrize("executor", ["reference", "native"])
def test_a_canary_among_texts(folder: Path, executor: str) -> None:
    encoder = opened(folder, executor=executor, canary_interval=1e-9)
    canary = Canary(encoder, encoder.info.canary, 1e-9)
    said: list[FromEngine] = []
    for number in range(12):
        encoder.submit(Embed(str(number), [[number + 1] * (1 + number * 11 % 97)] * 3))
        canary.turn(float("inf"))
        said += canary.sift(encoder.step())
    while not encoder.idle:
        said += canary.sift(encoder.step())
    assert len(vectors(said)) == 12, "and none of the canary's"
    assert canary.stats().canary_checks > 3
    assert canary.deviations == 0
    encoder.close()


def test_a_canary_ends_an_encoder_whose_weights_have_changed(folder: Path) -> None:
    encoder = opened(folder, executor="reference", canary_interval=1e-9)
    canary = Canary(encoder, encoder.info.canary, 1e-9)
    weights = encoder._executor._weights  # type: ignore[attr-defined]  # of the reference
    for name, values in weights.items():
        weights[name] = values * np.float32(1.001)
    encoder.submit(Embed("a", [[1] * 90]))
    encoder.submit(Embed("b", [[1] * 90]))
    canary.turn(float("inf"))
    encoder.submit(Embed("c", [[1] * 90]))
    said: list[FromEngine] = []
    while not encoder.idle:
        said += canary.sift(encoder.step())
    assert [type(message).__name__ for message in said] == ["Embedded", "Deviated", "Failed", "Failed"], (
        "the first was sent before; of the others, one is ready and one is in a step"
    )
    with pytest.raises(CanaryError):
        encoder.submit(Embed("d", [[1]]))
    encoder.close()


def test_requests_share_steps_and_are_answered_in_order(encoder: Encoder) -> None:
    texts = [[number + 1] * (1 + number * 11 % 97) for number in range(12)]
    encoder.submit(Embed("a", texts[:5]))
    encoder.submit(Embed("b", texts[5:6]))
    encoder.submit(Embed("c", texts[6:]))
    made = vectors(drained(encoder))
    assert list(made) == ["a", "b", "c"]
    for text, vector in zip(texts, np.concatenate(list(made.values())), strict=True):
        encoder.submit(Embed("alone", [text]))
        assert vectors(drained(encoder))["alone"][0].tobytes() == vector.tobytes()
    stats = encoder.stats()
    assert stats.prompt_tokens == 2 * sum(map(len, texts))
    assert stats.steps < 12 + 12


def test_a_smaller_priority_goes_first_even_before_the_rest_of_one_that_has_begun(encoder: Encoder) -> None:
    encoder.submit(Embed("later", [[1] * 90] * 3, priority=1))
    encoder.step()
    encoder.submit(Embed("a", [[2] * 90]))
    encoder.submit(Embed("last", [[3]], priority=1))
    encoder.submit(Embed("b", [[2] * 90]))
    assert list(vectors(drained(encoder))) == ["a", "b", "later", "last"]


def test_a_cancelled_request_says_nothing_more(encoder: Encoder) -> None:
    encoder.submit(Embed("a", [[1] * 150] * 3))
    encoder.submit(Embed("b", [[2]]))
    encoder.step()
    encoder.cancel("a")
    encoder.cancel("unknown")
    assert list(vectors(drained(encoder))) == ["b"]
    encoder.submit(Embed("a", [[3]]))
    encoder.cancel_all()
    assert encoder.idle
    assert encoder.step() == []


@pytest.mark.parametrize(
    ("texts", "error"),
    [
        ([], RequestError),
        ([[]], RequestError),
        ([[200]], RequestError),
        ([[-1]], RequestError),
        ([[1] * 161], ContextLengthError),
    ],
)
def test_what_it_cannot_read_is_refused(encoder: Encoder, texts: list[list[int]], error: type[Exception]) -> None:
    with pytest.raises(error):
        encoder.submit(Embed("a", texts))
    assert encoder.idle


def test_ids_are_used_once_and_the_queue_has_an_end(encoder: Encoder) -> None:
    for number in range(4):
        encoder.submit(Embed(str(number), [[1]]))
    with pytest.raises(RequestError, match="in use"):
        encoder.submit(Embed("0", [[1]]))
    with pytest.raises(QueueFullError):
        encoder.submit(Embed("4", [[1]]))
    assert len(drained(encoder)) == 4


def test_an_encoder_is_no_decoder(folder: Path) -> None:
    with pytest.raises(UnsupportedError, match="/v1/embeddings"):
        load_engine(EngineConfig(model=str(folder), executor="reference"))
    with pytest.raises(ConfigError, match="no pools"):
        opened(folder, role="prefill")


def test_pairs_are_pairs_for_a_model_that_reads_them_and_for_no_other(tmp_path: Path, encoder: Encoder) -> None:
    scorer = opened(write_bert(tmp_path, SCORER), canary_interval=1e-9)
    assert (scorer.info.embedding_width, scorer.info.score, encoder.info.score) == (1, "sigmoid", None)
    with pytest.raises(RequestError, match="reads texts"):
        encoder.submit(Embed("a", [[1, 2]], seconds=[1]))
    for wrong, why in ((None, "reads pairs"), ([1], "where"), ([1, 3], "where"), ([-1, 0], "where")):
        with pytest.raises(RequestError, match=why):
            scorer.submit(Embed("a", [[1, 2], [3, 4]], seconds=wrong))
    canary = Canary(scorer, scorer.info.canary, 1e-9)
    texts, said = [[number + 1] * (3 + number * 11 % 97) for number in range(12)], list[FromEngine]()
    scorer.submit(Embed("a", texts, seconds=[len(text) // 3 for text in texts]))
    canary.turn(float("inf"))
    scorer.submit(Embed("b", texts, seconds=[0] * 12))
    while not scorer.idle:
        said += canary.sift(scorer.step())
    scorer.close()
    assert (canary.stats().canary_checks, canary.deviations) == (1, 0)
    a, b = (np.frombuffer(message.vectors, "<f4") for message in said if isinstance(message, Embedded))
    assert len(a) == len(b) == 12
    assert (a != b).all()


@pytest.mark.parametrize("executor", ["native", "reference"])
def test_every_text_fits_a_step_whatever_is_said_of_steps(folder: Path, executor: str) -> None:
    encoder = opened(folder, executor=executor, max_num_batched_tokens=16, max_num_seqs=16)
    encoder.submit(Embed("a", [[1] * 160, [2] * 3, [3]]))
    made = vectors(drained(encoder))["a"]
    encoder.close()
    np.testing.assert_allclose(np.linalg.norm(made, axis=1), 1, atol=1e-6)
