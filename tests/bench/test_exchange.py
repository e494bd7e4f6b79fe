import pytest

from trimaran.bench.client import UnexpectedAnswerError
from trimaran.bench.exchange import Timing, read

DONE = b"data: [DONE]\n\n"


def piece(text: str, finish: str = "null") -> bytes:
    return b'data: {"choices": [{"index": 0, "text": "%s", "finish_reason": %s}]}\n\n' % (
        text.encode(),
        finish.encode(),
    )


def usage(prompt: int, output: int) -> bytes:
    return b'data: {"choices": [], "usage": {"prompt_tokens": %d, "completion_tokens": %d}}\n\n' % (prompt, output)


def timed(*received: tuple[float, bytes], sent: float = 0) -> Timing:
    timing = Timing(sent)
    read(received, timing)
    return timing


def test_the_arithmetic_of_a_stream():
    timing = timed((11, piece("a")), (12, piece("b")), (15, piece("c", '"length"')), (16, usage(7, 3) + DONE), sent=10)
    timing.ended = 16
    assert (timing.ttft, timing.tpot, timing.e2e) == (1, 2, 6)
    assert timing.gaps == [1, 3]
    assert (timing.prompt_tokens, timing.tokens) == (7, 3)


def test_an_event_counts_when_its_end_arrives():
    whole = piece("a")
    timing = timed((1, whole[:9]), (2, whole[9:] + piece("b")), (4, DONE))
    assert timing.pieces == [2, 2]
    assert timing.tokens == 2  # pieces, as no usage came


def test_a_last_token_without_text_ends_the_time_per_token():
    timing = timed((1, piece("a")), (3, piece("", '"stop"')), (3, usage(1, 3) + DONE))
    assert timing.pieces == [1]
    assert timing.tpot == 1


def test_a_role_is_no_token_and_reasoning_is():
    role = b'data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}\r\n\r\n'
    thought = b'data:{"choices": [{"delta": {"reasoning_content": "hm"}}]}\r\n\r\n'
    assert timed((1, role), (2, thought), (3, DONE)).pieces == [2]


def test_one_token_has_no_time_per_token():
    assert timed((1, piece("a", '"length"')), (1, usage(1, 1)), (1, DONE)).tpot is None


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (piece("a"), "without .DONE."),
        (b'data: {"error": {"message": "lost"}}\n\n' + DONE, "lost"),
        (b"data: {\n\n" + DONE, "cannot be read"),
        (DONE, "without a token"),
    ],
)
def test_what_is_no_whole_stream_is_an_error(data, words):
    with pytest.raises(UnexpectedAnswerError, match=words):
        timed((1, data))
