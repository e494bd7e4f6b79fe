"""A sequence that one executor prefills and another decodes: cache groups with windows, latents, indexers."""

from dataclasses import replace

import numpy as np
import pytest
from tests.kernels.scales import in_format

from trimaran.base.errors import TransferError
from trimaran.base.formats import KVFormat
from trimaran.kernels import handoff
from trimaran.kernels.handoff import hand_over, pages_read
from trimaran.kernels.open import open_executor
from trimaran.kernels.step import Executor

from .families import golden
from .running import ORACLE, Model, Tables, load, run, step

PROMPT = 30  # of 43 tokens
MODELS = ["llama3", "gemma3_text", "mistral", "deepseek_v3", "deepseek_v32"]


def open_with(model: Model, executor: str, fmt: KVFormat) -> tuple[Executor, Tables]:
    opened = open_executor(executor, model.program, model.weights, in_format(ORACLE, fmt, model.program))
    return opened, Tables(model.program, np.random.default_rng())


def prefilled(model: Model, executor: str, fmt: KVFormat, tokens: np.ndarray) -> tuple[Executor, Tables]:
    """In slot 2, a chunk at a time."""
    opened, tables = open_with(model, executor, fmt)
    for first in range(0, PROMPT, 11):
        step(opened, tables, [(2, tokens, first, min(11, PROMPT - first))])
    return opened, tables


def moved(source: tuple[Executor, Tables], model: Model, executor: str, fmt: KVFormat) -> tuple[Executor, Tables]:
    """To slot 1 of an executor with pages ``fmt``."""
    taker, taken = open_with(model, executor, fmt)
    taken.advance(1, 0, PROMPT)
    giver, given = source
    hand_over(
        giver,
        pages_read(giver.layout, given.tables, 2, PROMPT),
        taker,
        pages_read(taker.layout, taken.tables, 1, PROMPT),
    )
    return taker, taken


@pytest.mark.parametrize("fmt", [KVFormat.FP32, KVFormat.BF16, KVFormat.INT8])
@pytest.mark.parametrize("executor", ["reference", "native"])
@pytest.mark.parametrize("name", MODELS)
def test_what_was_handed_over_goes_on_bit_for_bit(
    monkeypatch: pytest.MonkeyPatch, name: str, executor: str, fmt: KVFormat
) -> None:
    monkeypatch.setattr(handoff, "BATCH_BYTES", 1)  # a page at a time
    model, tokens = load(name), golden(name)["tokens"]
    expected = run(model, executor, tokens, [len(tokens)], replace(ORACLE, kv_format=fmt))[PROMPT:]
    taker, tables = moved(prefilled(model, executor, fmt, tokens), model, executor, fmt)
    rows = [step(taker, tables, [(1, tokens, at, 1)]) for at in range(PROMPT, len(tokens))]
    assert np.concatenate(rows).tobytes() == expected.tobytes()


@pytest.mark.parametrize("target", [KVFormat.FP8, KVFormat.INT8, KVFormat.INT8_INT4, KVFormat.INT4])
def test_native_converts_as_the_reference_does(target: KVFormat) -> None:
    """A prompt in bf16 pages, decoded in others: logits of both executors agree as they do without a hand-over."""
    model, tokens = load("llama3"), golden("llama3")["tokens"]
    found = []
    for executor in ("reference", "native"):
        taker, tables = moved(prefilled(model, executor, KVFormat.BF16, tokens), model, executor, target)
        found.append(np.concatenate([step(taker, tables, [(1, tokens, at, 1)]) for at in range(PROMPT, len(tokens))]))
    np.testing.assert_allclose(found[1], found[0], atol=2e-2 * np.abs(found[0]).max())


def test_all_groups_move_or_none() -> None:
    model, tokens = load("gemma3_text"), golden("gemma3_text")["tokens"]
    giver, given = prefilled(model, "native", KVFormat.BF16, tokens)
    taker, taken = open_with(model, "native", KVFormat.INT8)
    taken.advance(1, 0, PROMPT)
    sent = pages_read(giver.layout, given.tables, 2, PROMPT)
    places = pages_read(taker.layout, taken.tables, 1, PROMPT)
    assert sorted(len(pages) for pages in sent) == [1, 2], "a window needs less than the whole"
    everything = np.arange(1, ORACLE.pages_of(0), dtype=np.int32)
    before = [taker.export_pages(group, everything, KVFormat.INT8) for group in range(2)]
    outside = np.full_like(places[1], ORACLE.pages_of(1))
    for wrong in ((places[0], outside), (places[0], places[1][:-1]), places[:1]):
        with pytest.raises(TransferError):
            hand_over(giver, sent, taker, wrong)
    after = [taker.export_pages(group, everything, KVFormat.INT8) for group in range(2)]
    assert all(a.tobytes() == b.tobytes() for a, b in zip(after, before, strict=True))
    size = sum(len(pages) * taker.layout.page_bytes(group) for group, pages in enumerate(sent))
    assert hand_over(giver, sent, taker, places) == size


def test_executors_of_another_model_or_kind_are_refused() -> None:
    giver, given = prefilled(load("llama3"), "native", KVFormat.BF16, golden("llama3")["tokens"])
    sent = pages_read(giver.layout, given.tables, 2, PROMPT)
    for name, kind, what in (("llama3", "reference", "executor"), ("qwen2", "native", "groups")):
        taker, _ = open_with(load(name), kind, KVFormat.BF16)
        with pytest.raises(TransferError, match=what):
            hand_over(giver, sent, taker, sent)
