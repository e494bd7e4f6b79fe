"""Events by template are byte for byte what encoding each would give."""

import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimaran.base.sampling import SamplingParams
from trimaran.server.dataplane import Generation, Usage
from trimaran.server.openai import answers, chat, chat_events, completions
from trimaran.server.openai.identity import Identity
from trimaran.server.openai.schema import ChatRequest, CompletionRequest
from trimaran.server.openai.sse import MARK, TextEvent, event
from trimaran.text.choice import Piece

texts = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(["\0", '"\\', "\u2028\x1f</", "🎉é"])
RUN = SimpleNamespace(usage=Usage(3, 1, 2))
PLANE = SimpleNamespace(tokenizer=None)


def said(text: str, choice: int = 0, finish: str | None = None) -> Piece:
    return Piece(choice, text, (), (), 1, finish)


@given(text=texts, model=texts, usage=st.booleans(), choice=st.integers(0, 200))
def test_a_text_event_is_the_encoding(text, model, usage, choice):
    def chunk(content: str) -> answers.Completion:
        more = {"usage": None} if usage else {}
        choices = [answers.CompletionChoice(choice, content)]
        return answers.Completion(id="i", created=1, model=model, system_fingerprint="f", choices=choices, **more)

    assert TextEvent(chunk(MARK))(text) == event(chunk(text))


def test_a_text_event_needs_a_place_for_the_text():
    with pytest.raises(AssertionError):
        TextEvent(answers.ChatMessage("hello"))


@given(parts=st.lists(st.tuples(texts, st.integers(0, 1)), max_size=6), usage=st.booleans())
def test_streams_say_every_piece_once_and_in_the_same_shape(parts, usage):
    options = {"include_usage": usage}
    one = ChatRequest(model="m", messages=[{"role": "user", "content": "x"}], stream=True, stream_options=options, n=2)
    two = CompletionRequest(model="m", prompt="x", stream=True, stream_options=options, n=2, echo=True)
    who = Identity("id", 1, "m", "fp")
    talk = chat_events.Events(RUN, one, chat.Asked(Generation((), SamplingParams())), who, PLANE)
    for events, before in ((talk, ""), (completions.Events(RUN, two, who, PLANE), "x")):
        pieces = [said(text, choice) for text, choice in parts] + [said("", 0, "stop"), said("", 1, "length")]
        data = [json.loads(e.removeprefix(b"data: ")) for piece in pieces if (e := events.of(piece))]
        assert len({frozenset(chunk) for chunk in data}) == 1
        assert all(("usage" in chunk) == usage for chunk in data)
        for choice in (0, 1):
            mine = [c for chunk in data for c in chunk["choices"] if c["index"] == choice]
            spoken = [c["delta"].get("content", "") if "delta" in c else c["text"] for c in mine]
            assert "".join(spoken) == before + "".join(text for text, at in parts if at == choice)
            assert [c["finish_reason"] for c in mine][-1] == ("stop", "length")[choice]
            assert len({frozenset(c) for c in mine}) == 1
            if "delta" in mine[0]:
                assert ["role" in c["delta"] for c in mine] == [True] + [False] * (len(mine) - 1)
        assert bool(events.last()) == usage
