from pathlib import Path

import pytest

from trimaran.base.errors import CheckpointError, ConfigError
from trimaran.checkpoint import open_checkpoint
from trimaran.evaluate import datasets
from trimaran.evaluate.choices import Choice, read_choices, to_question
from trimaran.evaluate.suite import CODE
from trimaran.text.tokenizer import open_tokenizer

from .tiny import write_tiny

GOOD = '{"context": "2 + 2 =", "options": [" 4", " 5"], "answer": 0}'


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "sums.jsonl"
    file.write_text(GOOD + "\n\n" + GOOD.replace("0}", '1, "normalised": true}') + "\n")
    assert read_choices(file) == [
        Choice("sums", "2 + 2 =", (" 4", " 5"), 0),
        Choice("sums", "2 + 2 =", (" 4", " 5"), 1, normalised=True),
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "is not JSON"),
        ("[1]", "must be a JSON object"),
        (GOOD.replace("2 + 2 =", ""), "context must be a text"),
        (GOOD.replace('" 5"', '""'), "options must be 2 to 64 texts"),
        (GOOD.replace(', " 5"', ""), "options must be 2 to 64 texts"),
        (GOOD.replace("0}", "2}"), "answer must be a number from 0 to 1, not 2"),
        (GOOD.replace("0}", "true}"), "answer must be a number from 0 to 1, not True"),
        (GOOD.replace("0}", '0, "normalised": 1}'), "normalised must be true or false"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, reason: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(f"{GOOD}\n{line}\n")
    with pytest.raises(ConfigError, match=f"bad.jsonl, line 2.*{reason}"):
        read_choices(file)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        read_choices(tmp_path / "no.jsonl")


def test_options_continue_the_context(smollm2: Path) -> None:
    with open_checkpoint(smollm2) as checkpoint:
        tokenizer = open_tokenizer(checkpoint)
    question = to_question(
        Choice("g", "Question: why?\nAnswer:", (" yes", " because it is"), 1, normalised=True), tokenizer
    )
    assert tokenizer.decode(question.context) == "Question: why?\nAnswer:"
    assert [tokenizer.decode(each) for each in question.options] == [" yes", " because it is"]
    assert question.weights == (4, 14)
    assert question.length == len(question.context) + len(question.options[1])


def test_an_option_without_tokens_is_refused(tmp_path: Path) -> None:
    with open_checkpoint(write_tiny(tmp_path / "tiny")) as checkpoint:
        tokenizer = open_tokenizer(checkpoint)
    with pytest.raises(ConfigError, match="has no tokens"):
        to_question(Choice("g", "a", ("b", "é"), 0), tokenizer)


def test_piqa_and_boolq_as_they_come() -> None:
    item = {"question": "dresser", "options": "A. replace drawer with bobby pin \nB. finish", "answer": "B. finish"}
    assert datasets.piqa(item) == Choice(
        "PIQA", "Question: dresser\nAnswer:", (" replace drawer with bobby pin", " finish"), 1, normalised=True
    )
    item = {"question": "is it so", "passage": "It is.", "answer": "True"}
    assert datasets.boolq(item) == Choice("BoolQ", "It is.\nQuestion: is it so?\nAnswer:", (" no", " yes"), 1)


def test_data_of_another_shape_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in datasets.MEMBERS:
        (tmp_path / name).write_text('{"question": "x"}\n')
    monkeypatch.setattr(datasets, "resolve_data", lambda *args, **kwargs: tmp_path)
    with pytest.raises(CheckpointError, match=r"piqa.jsonl, line 1 is not as expected"):
        datasets.fetch_choices()


def test_the_code_problems_differ_in_little_and_are_all_ours() -> None:
    choices = read_choices(CODE, "code")
    assert len(choices) >= 40
    assert len({each.context for each in choices}) == len(choices)
    for each in choices:
        right, wrong = each.options
        assert right != wrong
        assert abs(len(right) - len(wrong)) <= 8, "neither is likelier by its length"
