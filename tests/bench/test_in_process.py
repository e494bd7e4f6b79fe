import pytest

from trimaran.base.errors import TrimaranError
from trimaran.base.messages import Failed
from trimaran.bench.cases import Decode, EndToEnd, Mixed, Prefill
from trimaran.bench.in_process import InProcessEngine
from trimaran.engine.config import EngineConfig
from trimaran.engine.load import load_engine
from trimaran.kernels.null import NullModel

STEP = 0.002


@pytest.fixture
def engine():
    config = EngineConfig(executor="null", max_num_seqs=16, null=NullModel(step_seconds=STEP))
    engine = load_engine(config)
    yield engine
    engine.close()


@pytest.mark.parametrize("case", [Prefill(700), Decode(40, 8), Decode(40, 8, 16), EndToEnd(8, 40, 6), Mixed(8)])
def test_every_case_is_measured_and_leaves_nothing_behind(engine, case):
    rate = InProcessEngine(engine, engine.info.vocab).measure(case)
    assert rate > 0
    stats = engine.stats()
    assert engine.idle
    assert stats.running == stats.waiting == 0
    assert stats.preemptions == 0


def test_decode_counts_one_token_a_sequence_and_step(engine):
    rate = InProcessEngine(engine, engine.info.vocab).measure(Decode(depth=20, steps=10, sequences=4))
    assert rate <= 4 / STEP


def test_prefill_counts_every_chunk(engine):
    rate = InProcessEngine(engine, engine.info.vocab).measure(Prefill(1024))
    assert rate <= 1024 / (2 * STEP), "1024 tokens take two steps of 512"


def test_a_failed_request_is_no_measurement(engine, monkeypatch):
    monkeypatch.setattr(engine, "step", lambda: [Failed("1", "NumericsError", "NaN")])
    with pytest.raises(TrimaranError, match="NumericsError: NaN"):
        InProcessEngine(engine, engine.info.vocab).measure(Prefill(8))
