"""A prompt whose logits are known tells when weights have changed in memory, and never when they have not."""

import logging
import shutil
import time
from pathlib import Path
from random import Random

import msgspec
import numpy as np
import pytest

from trimaran.base.errors import CanaryError, ConfigError
from trimaran.base.failures import error_of
from trimaran.base.formats import KVFormat, WeightFormat
from trimaran.base.messages import Beat, Cancel, Deviated, Failed, FromEngine, Stop, Submit, ToEngine, Tokens
from trimaran.base.sampling import SamplingParams
from trimaran.checkpoint.verify import write_model_manifest
from trimaran.engine.canary import Canary, prove
from trimaran.engine.config import EngineConfig
from trimaran.engine.engine import Engine
from trimaran.engine.load import load_engine
from trimaran.engine.worker import Stopping, serve
from trimaran.kernels.null import NullModel

from .driving import greedy, null_engine
from .live_memory import flip_everywhere
from .test_worker import Script
from .tiny_model import VOCAB, write_model

SOON = 1e-9  # seconds; a run begins as soon as the one before has ended
DYNAMIC = [fmt for fmt in KVFormat if "static" not in fmt.value]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny")


def load(model: Path, executor: str = "reference", **options) -> Engine:
    options = {"canary_interval": SOON, "threads": 1, "max_model_len": 96, **options}
    return load_engine(EngineConfig(model=str(model), executor=executor, **options))


def canary_of(engine: Engine, interval: float = SOON) -> Canary:
    return Canary(engine, engine.info.canary, interval)


def turn(engine: Engine, canary: Canary) -> list[FromEngine]:
    """One turn of the worker's loop."""
    canary.turn(time.monotonic())
    return canary.sift(engine.step())


def check(engine: Engine, canary: Canary) -> list[FromEngine]:
    """Turns until one more run has ended."""
    before, said = canary.checks, []
    for _ in range(1000):
        said += turn(engine, canary)
        if canary.checks > before:
            return said
    raise AssertionError("it did not end")


def crowd(engine: Engine, canary: Canary, checks: int, seed: int = 0) -> list[FromEngine]:
    """Other requests come, share beginnings, are preempted and leave while the canary runs ``checks`` times."""
    random, said, names = Random(seed), [], 0
    shared = [random.randrange(VOCAB) for _ in range(40)]
    while canary.checks < checks and not canary.deviations:
        while len(engine.sequences) < 6:
            prompt = shared[: random.randrange(40)] + [random.randrange(VOCAB) for _ in range(random.randint(1, 9))]
            sampling = SamplingParams(
                temperature=random.choice([0.0, 1.0]), max_tokens=random.randint(1, 40), ignore_eos=True
            )
            engine.submit(Submit(str(names), prompt, sampling, random.randrange(2)))
            names += 1
        said += turn(engine, canary)
        if random.random() < 0.05:
            engine.cancel(random.choice(engine.sequences).id)
    return said


@pytest.mark.parametrize("kv_format", DYNAMIC)
@pytest.mark.parametrize("weight_format", [WeightFormat.FP32, WeightFormat.INT4])
def test_no_alarm_whatever_runs_beside_it(tiny, kv_format, weight_format):
    options = {"kv_format": kv_format, "weight_format": weight_format, "max_num_batched_tokens": 13, "max_num_seqs": 5}
    lone = load(tiny, "native", **options)
    page_bytes = lone.info.kv_bytes // (lone.info.pages[0].total + 1)
    engine = load(tiny, "native", kv_memory_bytes=14 * page_bytes, **options)
    assert engine.info.canary == lone.info.canary, "chunks and pages do not matter"
    canary = canary_of(engine)
    said = crowd(engine, canary, 12)
    assert canary.deviations == 0
    assert not any(isinstance(message, Deviated | Failed) for message in said)
    assert engine.stats().preemptions > 0
    for each in (lone, engine):
        each.close()


@pytest.mark.parametrize("overlap", [True, False])
def test_no_alarm_on_the_reference(tiny, overlap):
    engine = load(tiny, overlap=overlap, max_num_batched_tokens=13, max_num_seqs=5)
    canary = canary_of(engine)
    crowd(engine, canary, 4)
    assert (canary.checks, canary.deviations) == (4, 0)


def test_no_alarm_beside_drafts(tiny):
    """What is drafted for others makes rows of logits; the canary's own tokens are never drafted."""
    engine = load(tiny, "native", speculative_ngram=4, max_num_seqs=8)
    canary = canary_of(engine)
    for name in "ab":
        engine.submit(Submit(name, [5, 6, 7, 8] * 6, greedy(60, ignore_eos=True, logit_bias={5: 100.0})))
    while not engine.idle and canary.checks < 8:
        turn(engine, canary)
    assert engine.stats().drafted_tokens > 0
    assert (canary.checks, canary.deviations) == (8, 0)
    engine.close()


@pytest.mark.parametrize("bit", [12, 22, 31])  # the lowest bits of a single weight may be lost in rounding
@pytest.mark.parametrize("name", ["model.norm", "lm_head", "model.layers.1.mlp.down_proj"])
def test_a_flipped_bit_is_seen_by_the_next_run(tiny, name, bit):
    engine = load(tiny)
    canary = canary_of(engine)
    check(engine, canary)
    engine.executor._weights[name] = weights = engine.executor._weights[name].copy()  # what is mapped is read-only
    weights.reshape(-1).view(np.uint32)[7] ^= np.uint32(1 << bit)
    said = check(engine, canary)
    assert any(isinstance(message, Deviated) for message in said)


def test_a_flipped_bit_in_the_native_executors_memory_is_seen_under_load(tiny):
    engine = load(tiny, "native", max_num_seqs=4)
    canary = canary_of(engine)
    crowd(engine, canary, 3)
    assert canary.deviations == 0
    norm = _stored(tiny, "model.norm.weight")
    engine.finish()
    assert flip_everywhere(norm, at=4 * 7 + 2, mask=0x10)
    said = crowd(engine, canary, 100)
    assert canary.deviations == 1
    assert canary.checks <= 5, "a run may have been under way"
    [deviated] = [message for message in said if isinstance(message, Deviated)]
    assert deviated.expected == engine.info.canary != deviated.found
    engine.close()


def _stored(model: Path, name: str) -> bytes:
    """A tensor's bytes in the file, all fp32."""
    data = (model / "model.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    start, end = msgspec.json.decode(data[8 : 8 + size])[name]["data_offsets"]
    return data[8 + size + start : 8 + size + end]


def test_all_requests_end_and_none_is_taken_once_it_has_deviated(caplog):
    engine = null_engine(canary_interval=SOON, max_num_seqs=2)
    canary = canary_of(engine)
    for name in "abc":
        engine.submit(Submit(name, [1, 2, 3], greedy(200)))
    check(engine, canary)
    engine.executor._factors[0][3] ^= np.uint64(8)
    said = check(engine, canary) + turn(engine, canary)
    [deviated] = [message for message in said if isinstance(message, Deviated)]
    failures = said[-3:]
    assert not any(isinstance(message, Tokens) for message in said[said.index(deviated) :]), "it is withheld"
    assert [failure.id for failure in failures] == ["a", "b", "c"]
    assert all(isinstance(error_of(failure), CanaryError) for failure in failures)
    assert "canary deviated: model=null expected=" in caplog.text
    with pytest.raises(CanaryError, match="came out otherwise"):
        engine.submit(Submit("d", [1], greedy()))
    assert engine.idle
    assert engine.cache.unused
    assert sum(pages.cached for pages in engine.stats().pages) == 0, "what suspect weights have made is not found again"
    assert (canary.stats().canary_checks, canary.stats().canary_deviations) == (2, 1)
    assert turn(engine, canary) == [], "it has said so, and runs no more"


def test_weights_that_give_no_numbers_are_a_deviation_too(tiny):
    engine = load(tiny)
    canary = canary_of(engine)
    engine.executor._weights["model.norm"][:] = np.nan
    [deviated] = [message for message in check(engine, canary) if isinstance(message, Deviated)]
    assert deviated.found.startswith("NumericsError")


def test_a_page_fault_of_the_canary_is_no_deviation():
    engine = null_engine(canary_interval=SOON, overlap=False)
    canary = canary_of(engine)
    turn(engine, canary)
    [sequence] = engine.sequences
    engine.cache.groups[0].table[sequence.slot, 0] = 9
    assert turn(engine, canary) == []
    assert engine.stats().page_faults == 1
    assert (canary.checks, canary.deviations) == (0, 0)
    check(engine, canary)
    assert canary.deviations == 0


def test_it_leaves_nothing_in_the_cache_and_finds_nothing_there():
    engine = null_engine(canary_interval=SOON, null=NullModel(windows=(None, 32)))
    canary = canary_of(engine)
    for _ in range(3):
        check(engine, canary)
        assert [pages.cached for pages in engine.stats().pages] == [0, 0]
    assert engine.stats().cached_tokens == 0
    assert engine.cache.unused


def test_it_runs_first_where_all_places_are_taken():
    engine = null_engine(canary_interval=SOON, max_num_seqs=1)
    canary = canary_of(engine)
    for name in "ab":
        engine.submit(Submit(name, [1, 2, 3], greedy(100)))
    engine.step()
    check(engine, canary)
    assert {sequence.id for sequence in engine.sequences} == {"a", "b"}
    lone = null_engine()
    lone.submit(Submit("a", [1, 2, 3], greedy(100)))
    said = []
    while not engine.idle:
        said += canary.sift(engine.step())
    assert canary.deviations == 0
    ids = [token.id for message in said if message.id == "a" for token in message.tokens]
    expected = []
    while not lone.idle:
        expected += [token.id for message in lone.step() for token in message.tokens]
    assert ids == expected[-len(ids) :]


def test_requests_without_a_seed_get_the_same_one_with_a_canary():
    def tokens(interval: float) -> list[int]:
        engine = null_engine(canary_interval=interval, seed=5)
        canary = canary_of(engine, interval) if interval else None
        if canary is not None:
            check(engine, canary)
        engine.submit(Submit("a", [1, 2], SamplingParams(max_tokens=20)))
        said = []
        while not engine.idle:
            said += engine.step() if canary is None else canary.sift(engine.step())
        return [token.id for message in said for token in message.tokens]

    assert tokens(0.0) == tokens(SOON)


def test_a_short_context_shortens_the_prompt():
    engine = null_engine(context=2, canary_interval=SOON)
    canary = canary_of(engine)
    check(engine, canary)
    assert canary.deviations == 0


def test_without_an_interval_there_is_none():
    assert null_engine().info.canary == ""
    with pytest.raises(ConfigError, match="canary_interval must be at least 0"):
        EngineConfig(canary_interval=-1.0)


class Host(Script):
    """Says what it has to until beats tell of ``enough`` runs."""

    def __init__(self, *batches: list[ToEngine], enough: int) -> None:
        super().__init__(*batches)
        self.enough = enough

    def receive(self, wait: float, others: object = ()) -> list[ToEngine]:
        if self.batches:
            return self.batches.pop(0)
        beats = [message for message in self.sent if isinstance(message, Beat)]
        return [Stop(60)] if any(beat.canary_checks >= self.enough for beat in beats) else []


def test_the_workers_loop_runs_it_when_nothing_arrives():
    engine, host = null_engine(canary_interval=0.01), Host(enough=2)
    serve(engine, host, Stopping(), canary_of(engine, 0.01))
    assert not any(isinstance(message, Tokens | Failed) for message in host.sent), "its own messages are nobody's"


def test_the_workers_loop_tells_of_a_deviation_and_refuses_what_comes():
    engine = null_engine(canary_interval=SOON)

    class Breaking(Host):
        def receive(self, wait: float, others: object = ()) -> list[ToEngine]:
            if len(self.sent) > 40:
                engine.executor._factors[0][3] ^= np.uint64(8)
                self.sent = self.sent[:1]
            if any(isinstance(message, Deviated) for message in self.sent):
                return [Submit("late", [1], greedy()), Cancel("late"), Stop(60)]
            return super().receive(wait, others)

    host = Breaking([Submit("a", [1, 2], greedy(200))], enough=10**9)
    serve(engine, host, Stopping(), canary_of(engine))
    failures = {message.id: message.kind for message in host.sent if isinstance(message, Failed)}
    assert failures == {"a": "CanaryError", "late": "CanaryError"}


def test_a_canary_that_is_cancelled_when_the_worker_stops_says_nothing():
    engine = null_engine(canary_interval=SOON)
    host = Host([], [Stop(0)], enough=10**9)
    serve(engine, host, Stopping(), canary_of(engine))
    assert not any(isinstance(message, Deviated | Failed | Tokens) for message in host.sent)


@pytest.fixture
def kept(tiny, tmp_path, monkeypatch) -> tuple[Path, Path]:
    """A model with a manifest, and the folder where answers are kept."""
    monkeypatch.setenv("TRIMARAN_HOME", str(tmp_path / "home"))
    model = tmp_path / "verified"
    shutil.copytree(tiny, model)
    write_model_manifest(model)
    return model, tmp_path / "home" / "canaries"


def test_a_verified_models_answer_is_kept_and_held_against_the_next_start(kept):
    model, folder = kept
    first = load(model, "native").info.canary
    [file] = folder.iterdir()
    assert file.read_text() == first + "\n"
    assert load(model, "native").info.canary == first
    load(model, "native", kv_format=KVFormat.FP32)
    assert len(list(folder.iterdir())) == 2, "another format, another answer"
    file.write_text("0" * 64 + "\n")
    with pytest.raises(CanaryError, match=f"delete {file}"):
        load(model, "native")


def test_an_answer_that_is_no_digest_is_written_anew(kept, caplog):
    model, folder = kept
    first = load(model, "native").info.canary
    [file] = folder.iterdir()
    file.write_text("garbage")
    assert load(model, "native").info.canary == first
    assert "holds no answer" in caplog.text
    assert file.read_text() == first + "\n"


def test_without_a_manifest_or_on_the_reference_nothing_is_kept(kept, tiny):
    _, folder = kept
    assert load(tiny, "native").info.canary
    assert load(kept[0]).info.canary
    assert not folder.exists()


def test_a_cache_that_cannot_be_written_to_is_no_error(kept, monkeypatch, caplog):
    model, folder = kept
    folder.parent.mkdir()
    folder.write_text("a file, not a folder")
    with caplog.at_level(logging.WARNING):
        assert load(model, "native").info.canary
    assert "not kept" in caplog.text


def test_two_runs_that_differ_at_the_start_are_refused():
    engine = null_engine()
    finish = engine.executor.finish

    def drift():
        engine.executor._factors[0][3] += np.uint64(8)
        return finish()

    engine.executor.finish = drift
    with pytest.raises(CanaryError, match="run twice"):
        prove(engine, None)
