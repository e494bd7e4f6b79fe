import json

import pytest
from typer.testing import CliRunner

from trimaran.cli.app import app


@pytest.fixture
def run(smollm2):
    def run(*arguments, stdin=None):
        common = [str(smollm2), "--max-model-len", "256", "--offline"]
        return CliRunner().invoke(app, ["generate", *common, *arguments], input=stdin)

    return run


def test_text_comes_to_stdout_and_nothing_else(run):
    result = run("The capital of France is", "--max-tokens", "1")
    assert result.exit_code == 0
    assert (result.stdout, result.stderr) == (" Paris\n", "")


def test_json_says_how_it_ended(run):
    result = run("The capital of France is", "--max-tokens", "4", "--stop", ".", "--json", "-n", "2")
    found = json.loads(result.stdout)
    assert [choice["text"] for choice in found["choices"]] == [" Paris", " Paris"]
    assert {(choice["finish_reason"], choice["stop_reason"]) for choice in found["choices"]} == {("stop", ".")}
    assert found["prompt_tokens"] == 5
    assert found["completion_tokens"] == 2


def test_a_prompt_from_stdin(run):
    assert run("-", "--max-tokens", "1", stdin="The capital of France is").stdout == " Paris\n"


def test_several_choices_are_kept_apart(run):
    result = run("Once", "-n", "3", "--temperature", "1", "--seed", "1", "--max-tokens", "2")
    assert result.stdout.count("\n---\n") == 2


def test_a_message_goes_through_the_chat_template(run):
    found = json.loads(run("Hi", "--chat", "--json", "--max-tokens", "1").stdout)
    assert found["prompt_tokens"] > 20  # the default system message


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["x", "--top-p", "2"], "top_p"),
        (["x" * 3000], "context"),
        (["x", "--chat-template", "t.jinja"], "is for --chat"),
        (["x", "--executor", "gpu"], "'gpu'"),
        (["x", "--max-model-len", "100000"], "max_model_len"),
    ],
)
def test_user_errors_are_one_line_and_exit_2(run, arguments, text):
    result = run(*arguments)
    assert result.exit_code == 2
    assert text in result.stderr
    assert result.stderr.startswith("trimaran: ")


def test_an_unknown_model_is_exit_1():
    result = CliRunner().invoke(app, ["generate", "no-such-model", "x", "--offline"])
    assert result.exit_code == 1
    assert "no-such-model" in result.stderr
