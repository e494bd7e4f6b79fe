import pytest
from tests.server.byte_model import VOCAB, write_byte_model
from tests.server.running import running

from trimaran.base.errors import TrimaranError, UnsupportedError
from trimaran.bench.cases import Decode, EndToEnd, Mixed, Prefill
from trimaran.bench.exchange import Timing
from trimaran.bench.over_http import OverHttp, OwnServer, rate_together, whole_rate
from trimaran.kernels.null import NullModel

CASES = [Prefill(20), Decode(20, 8, 4), EndToEnd(4, 20, 6), Mixed(3)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_byte_model(tmp_path_factory.mktemp("bytes"))


def measure_once(subject, case):
    try:
        return subject.measure(case)
    finally:
        subject.close()


def test_every_case_is_measured_through_a_server_that_runs(model):
    null = NullModel(vocab=VOCAB, context=2048, step_seconds=0.01)
    with running(model, null=null) as server:
        subject = OverHttp("peer", server.url, vocab=90)
        rates = [subject.measure(case) for case in CASES]
        subject.close()
    assert all(rate > 0 for rate in rates)


def test_a_server_of_our_own_is_started_and_stopped(model):
    subject = OwnServer(str(model), ["--executor", "null", "--max-num-seqs", "4"], vocab=90)
    assert subject.name == "http"
    assert subject.measure(EndToEnd(4, 20, 6)) > 0
    subject.close()
    subject.close()
    with pytest.raises(TrimaranError, match="does not say which model"):
        measure_once(OverHttp("gone", subject.url, vocab=90), Prefill(8))


def test_a_refused_request_is_an_error(model):
    with running(model) as server, pytest.raises(UnsupportedError, match="peer failed 1 of 1 requests: 400"):
        measure_once(OverHttp("peer", server.url, vocab=VOCAB * 1000), Prefill(2000))


def stream(first: float, count: int, gap: float, tokens: int | None = None) -> Timing:
    pieces = [first + gap * place for place in range(count)]
    return Timing(0.0, ended=pieces[-1], pieces=pieces, last=pieces[-1], output_tokens=tokens)


def test_decode_counts_what_comes_while_all_streams_run():
    early, late = stream(1.0, 5, 1.0), stream(3.5, 7, 0.5)
    assert rate_together([early, late]) == pytest.approx((2 + 3) / 1.5)
    assert rate_together([stream(1.0, 5, 1.0, tokens=10)]) == pytest.approx(2 * 4 / 4)


def test_streams_that_never_run_together_have_no_rate():
    assert rate_together([stream(1.0, 2, 1.0), stream(3.0, 2, 1.0)]) is None
    assert rate_together([stream(1.0, 2, 1.0), Timing(0.0)]) is None


def test_a_batch_counts_from_the_first_sending_to_the_last_end():
    assert whole_rate([stream(1.0, 5, 1.0), stream(2.0, 6, 1.0)]) == pytest.approx(11 / 7)
