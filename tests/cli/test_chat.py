from dataclasses import dataclass, field

import pytest
from typer.testing import CliRunner

from trimaran.base.errors import ContextLengthError
from trimaran.base.sampling import SamplingParams
from trimaran.cli.app import app
from trimaran.cli.chat import HELP, Conversation, talk
from trimaran.completion import Delta


@dataclass
class FakeLLM:
    """Answers with the number of messages, in two pieces; remembers what it was asked."""

    asked: list = field(default_factory=list)
    error: BaseException | None = None

    def chat(self, messages, params, *, stream):
        assert stream
        self.asked.append([(message["role"], message["content"]) for message in messages])
        yield Delta(0, 0, "seen ")
        if self.error:
            raise self.error
        yield Delta(0, 0, str(len(messages)), finish_reason="stop")


@pytest.fixture
def llm():
    return FakeLLM()


@pytest.fixture
def conversation(llm):
    return Conversation(llm, SamplingParams(), "Be brief.")


@pytest.fixture
def say(conversation, monkeypatch):
    """Talks as if at a terminal."""

    def say(*lines):
        entered = iter(lines)

        def prompt(_):
            try:
                return next(entered)
            except StopIteration:
                raise EOFError from None

        monkeypatch.setattr("builtins.input", prompt)
        talk(conversation, interactive=True)

    return say


def test_a_conversation_remembers(llm, conversation):
    assert ["".join(conversation.answer(text)) for text in ("a", "b")] == ["seen 2", "seen 4"]
    assert llm.asked[1] == [("system", "Be brief."), ("user", "a"), ("assistant", "seen 2"), ("user", "b")]


def test_reset_keeps_the_system_message(llm, say, capsys):
    say("a", "/reset", "b")
    assert llm.asked[1] == [("system", "Be brief."), ("user", "b")]
    assert capsys.readouterr().out == "seen 2\nseen 2\n\n"


def test_exit_leaves_and_empty_lines_are_skipped(llm, say):
    say("", "  ", "a", "/exit", "b")
    assert len(llm.asked) == 1


def test_unknown_commands_are_explained_not_sent(llm, say, capsys):
    say("/help", "/rest", "/etc is a directory")
    assert capsys.readouterr().err == f"{HELP}\n/rest is not a command. {HELP}\n"
    assert llm.asked == [[("system", "Be brief."), ("user", "/etc is a directory")]]


def test_ctrl_c_stops_the_answer_and_keeps_what_was_said(llm, say, capsys):
    llm.error = KeyboardInterrupt()
    say("a", "b")
    assert llm.asked[1] == [("system", "Be brief."), ("user", "a"), ("assistant", "seen "), ("user", "b")]
    assert capsys.readouterr().out.startswith("seen  …\n")


def test_a_conversation_that_is_too_long_can_be_reset(llm, say, capsys):
    class Full(FakeLLM):
        def chat(self, messages, params, *, stream):
            self.asked.append(len(messages))
            raise ContextLengthError("too long")

    llm.__class__ = Full
    say("a", "b")
    assert llm.asked == [2, 2]  # nothing was added
    assert "too long\n/reset forgets" in capsys.readouterr().err


def test_piped_lines_are_one_conversation(smollm2):
    arguments = ["chat", str(smollm2), "--max-model-len", "256", "--max-tokens", "4", "--temperature", "0"]
    result = CliRunner().invoke(app, arguments, input="Hi\n\n/reset\nHi\n")
    assert result.exit_code == 0
    assert result.stderr == ""
    first, second = result.stdout.splitlines()
    assert first == second


def test_a_piped_conversation_that_is_too_long_is_a_user_error(smollm2):
    result = CliRunner().invoke(app, ["chat", str(smollm2), "--max-model-len", "64"], input="word " * 100)
    assert result.exit_code == 2
    assert "context" in result.stderr
