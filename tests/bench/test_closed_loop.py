from dataclasses import replace

import pytest

from trimaran.base.errors import TrimaranError
from trimaran.base.formats import KVFormat
from trimaran.base.messages import Failed
from trimaran.bench.closed_loop import Job, run_closed
from trimaran.engine.config import EngineConfig
from trimaran.engine.load import load_engine
from trimaran.kernels.null import NullModel


def open_engine(pages: int | None = None):
    [group] = NullModel().program().groups
    memory = None if pages is None else pages * group.page_bytes(KVFormat.BF16, 16)
    return load_engine(EngineConfig(executor="null", max_num_seqs=8, max_model_len=96, kv_memory_bytes=memory))


JOBS = [Job(list(range(3 + i, 43 + i)), 20) for i in range(12)]


def test_every_request_gets_its_tokens_whatever_the_concurrency():
    engine = open_engine()
    alone = run_closed(engine, JOBS, 1)
    together = run_closed(engine, JOBS, 8)
    engine.close()
    assert alone.outputs == together.outputs
    assert [len(output) for output in alone.outputs] == [20] * 12
    assert alone.tokens == together.tokens == 240
    assert (alone.most_running, together.most_running) == (1, 8)
    assert len(alone.waits) == 12
    assert len(alone.gaps) == 12 * 19
    assert alone.preemptions == together.most_waiting == 0
    assert 4 <= alone.most_pages < together.most_pages <= 32


def test_what_does_not_fit_waits():
    engine = open_engine(pages=9)
    flow = run_closed(engine, JOBS, 8)
    engine.close()
    assert flow.most_waiting > 0
    assert flow.most_running < 8
    assert flow.most_pages <= 9
    assert [len(output) for output in flow.outputs] == [20] * 12


def test_a_failed_request_ends_the_run(monkeypatch):
    engine = open_engine()
    monkeypatch.setattr(engine, "step", lambda: [Failed("0", "NumericsError", "NaN")])
    with pytest.raises(TrimaranError, match="NumericsError: NaN"):
        run_closed(engine, JOBS, 1)
    engine.close()


def test_requests_are_not_sent_before_they_are_due():
    engine = open_engine()
    flow = run_closed(engine, [replace(job, due=0.01 * place) for place, job in enumerate(JOBS[:3])], 8)
    engine.close()
    assert flow.seconds >= 0.02
    assert flow.prompt_tokens == 3 * 40
    assert [len(output) for output in flow.outputs] == [20] * 3
