"""Conversations that go on: their earlier turns are found again, and it is said where a template stands in the way."""

import logging
from pathlib import Path

import pytest

from .byte_model import END, START
from .running import NAME, Running, running

COUNTING = "{{ messages | length }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
QUESTION = {"role": "user", "content": "what is the matter with all of this, and why?"}


def talk(server: Running, *messages: dict[str, str], **fields: object) -> dict[str, str]:
    plain = {str(START): -100, str(END): -100}  # a control token in an answer is no text that could come back
    body = {"model": NAME, "messages": messages, "max_tokens": 40, "temperature": 0, "logit_bias": plain, **fields}
    answer = server.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return {"role": "assistant", "content": answer.json()["choices"][0]["message"]["content"]}


def counted(server: Running) -> tuple[float, float]:
    names = ("trimaran_conversations_continued_total", "trimaran_conversations_rewritten_total")
    return server.metric(names[0]), server.metric(names[1])


def test_a_conversation_is_found_again(server: Running) -> None:
    continued, rewritten = counted(server)
    first = talk(server, QUESTION)
    second = talk(server, QUESTION, first, QUESTION)
    talk(server, QUESTION, first, QUESTION, second, QUESTION)
    assert counted(server) == (continued + 2, rewritten)


def test_another_conversation_or_another_template_argument_is_not_the_same(server: Running) -> None:
    before = counted(server)
    first = talk(server, {"role": "user", "content": "something else"})
    talk(server, {"role": "user", "content": "something other"}, first, QUESTION)
    talk(server, {"role": "user", "content": "something else"}, first, QUESTION, chat_template_kwargs={"shout": True})
    assert counted(server) == before


def test_an_answer_that_the_client_has_changed_is_no_fault_of_the_template(server: Running) -> None:
    continued, rewritten = counted(server)
    talk(server, {"role": "user", "content": "be brief"})
    changed = {"role": "assistant", "content": "I was brief."}
    talk(server, {"role": "user", "content": "be brief"}, changed, QUESTION)
    assert counted(server) == (continued + 1, rewritten)


def test_a_template_that_writes_earlier_turns_otherwise_is_reported_once(
    byte_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    template = tmp_path / "counting.jinja"
    template.write_text(COUNTING)
    with running(byte_model, chat_template=str(template)) as server, caplog.at_level(logging.WARNING):
        first = talk(server, QUESTION)
        second = talk(server, QUESTION, first, QUESTION)
        talk(server, QUESTION, first, QUESTION, second, QUESTION)
        assert counted(server) == (2, 2)
    assert sum("trimaran_conversations_rewritten_total" in record.message for record in caplog.records) == 1
