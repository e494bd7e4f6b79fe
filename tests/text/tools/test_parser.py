import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimaran.text.tools.families import TOOL_FORMATS

from .parsing import ids, run
from .transcripts import FAMILIES, GLM47, HERMES, KIMI_K2, LLAMA3, MISTRAL, OFFERED, QWEN3_CODER

NAMES = [family.format for family in FAMILIES]
GOOD = [(family, transcript) for family in FAMILIES for transcript in family.good]
BAD = [(family, text) for family in FAMILIES for text in family.bad]


def label(value):
    return getattr(value, "format", None)


def test_every_format_has_transcripts():
    assert sorted(NAMES) == sorted(TOOL_FORMATS)


@pytest.mark.parametrize(("family", "transcript"), GOOD, ids=label)
@pytest.mark.parametrize("enforced", [False, True])
def test_transcripts_give_what_is_in_them_wherever_they_are_cut(family, transcript, enforced):
    tokens = ids(family, transcript.text)
    whole = run(family, tokens, thinking=transcript.thinking, enforced=enforced)
    assert whole.malformed == []
    assert whole.parsed == transcript.calls
    assert (whole.content, whole.thought) == (transcript.content, transcript.thought)
    assert run(family, tokens, range(len(tokens)), thinking=transcript.thinking, enforced=enforced) == whole
    for cut in range(len(tokens)):
        assert run(family, tokens, [cut], thinking=transcript.thinking, enforced=enforced) == whole


@pytest.mark.parametrize(("family", "text"), BAD, ids=label)
def test_a_malformed_call_is_reported_and_stays_text(family, text):
    tokens = ids(family, "Before. " + text)
    whole = run(family, tokens, thinking="no")
    assert len(whole.malformed) == 1
    known = [call for call in whole.calls if call[1] == "now"]  # what was sound before it
    assert whole.calls == known
    if not known:
        assert whole.content.startswith("Before. " + text[:8])
    for cut in range(len(tokens)):
        assert run(family, tokens, [cut], thinking="no") == whole


@pytest.mark.parametrize("family", FAMILIES, ids=label)
def test_calls_are_text_where_nothing_was_offered(family):
    for transcript in family.good:
        if transcript.calls and not family.control:
            answer = run(family, ids(family, transcript.text), thinking="no", offered=None)
            assert (answer.calls, answer.malformed, answer.content) == ([], [], transcript.text)


def pieces(family):
    """Parts of the family's transcripts in any order, with single characters between."""
    texts = [transcript.text for transcript in family.good] + list(family.bad)
    part = st.sampled_from(texts).flatmap(
        lambda text: st.tuples(st.integers(0, len(text)), st.integers(0, len(text))).map(
            lambda ends: text[min(ends) : max(ends)]
        )
    )
    return st.lists(st.one_of(part, st.sampled_from('{}[]"<>\\ \nné1'), st.sampled_from(texts)), max_size=6).map(
        "".join
    )


@pytest.mark.parametrize("family", FAMILIES, ids=label)
@given(data=st.data())
def test_any_text_gives_the_same_however_it_is_cut(family, data):
    tokens = ids(family, data.draw(pieces(family)))
    tokens = data.draw(st.permutations(tokens)) if data.draw(st.integers(0, 9)) == 0 else tokens
    thinking = data.draw(st.sampled_from(["no", "maybe", "begun"]))
    enforced = data.draw(st.booleans())
    cuts = data.draw(st.lists(st.integers(0, len(tokens)), max_size=8))
    whole = run(family, tokens, thinking=thinking, enforced=enforced)
    assert run(family, tokens, cuts, thinking=thinking, enforced=enforced) == whole
    assert run(family, tokens, range(len(tokens)), thinking=thinking, enforced=enforced) == whole
    if not enforced:
        assert all(isinstance(arguments, dict) for _, arguments in whole.parsed)
        assert all(name in OFFERED for name, _ in whole.parsed)
    for text in (whole.content, whole.thought, *whole.malformed, *(call[2] for call in whole.calls)):
        text.encode()  # no half of a surrogate pair is left


def test_a_marker_that_is_only_spelled_is_text():
    spelled = list(b"[TOOL_CALLS]now[ARGS]{}")
    assert run(MISTRAL, spelled).content == "[TOOL_CALLS]now[ARGS]{}"


def test_arguments_come_as_they_are_written_where_a_grammar_stands_behind_them():
    tokens = ids(HERMES, '<tool_call>\n{"name": "put", "arguments": {"key": "a long')
    cut = run(HERMES, tokens, range(len(tokens)), enforced=True)
    assert cut.calls == [("put-0", "put", '{"key": "a long')]
    barely = run(HERMES, ids(HERMES, 'Yes.\n<tool_call>\n{"name": "pu'), enforced=True)
    assert (barely.content, barely.calls, barely.malformed) == ("Yes.", [], [])
    held = run(HERMES, tokens, range(len(tokens)))
    assert held.calls == []
    assert held.content.startswith("<tool_call>")


@pytest.mark.parametrize("end", ["", "\n", "\n<", "\n</tool_", "\n</tool_call>"])
def test_a_complete_call_whose_end_is_cut_leaves_no_text(end):
    tokens = ids(HERMES, '<tool_call>\n{"name": "now", "arguments": {}}' + end)
    for cuts in ([], range(len(tokens))):
        answer = run(HERMES, tokens, cuts, enforced=True)
        assert (answer.content, answer.parsed, answer.malformed) == ("", (("now", {}),), [])


def test_a_call_ends_a_thought():
    answer = run(GLM47, ids(GLM47, "I call.<tool_call>now</tool_call>"), thinking="begun")
    assert (answer.thought, answer.parsed) == ("I call.", (("now", {}),))


def test_ids_that_are_written_are_kept():
    answer = run(MISTRAL, ids(MISTRAL, "[TOOL_CALLS]now[CALL_ID]abcdefghi[ARGS]{}"))
    assert answer.calls == [("abcdefghi", "now", "{}")]


def test_sound_calls_before_a_malformed_one_count():
    text = (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{<|tool_call_end|>"
    )
    answer = run(KIMI_K2, ids(KIMI_K2, text))
    assert answer.parsed == (("now", {}),)
    assert len(answer.malformed) == 1
    assert answer.content.startswith("<|tool_call_begin|>functions.now:1")


@pytest.mark.parametrize("text", ['{"name": "now", "arguments": {}}', '{"name": "now", "parameters": {}', "{"])
def test_json_that_only_looks_like_a_call_is_an_answer(text):
    answer = run(LLAMA3, ids(LLAMA3, text))
    assert (answer.content, answer.calls, answer.malformed) == (text, [], [])


@pytest.mark.parametrize(
    ("schema", "written", "meant"),
    [
        ({"type": "string"}, "5", "5"),
        ({"type": "integer"}, "5", 5),
        ({"type": ["string", "integer"]}, "5", 5),
        ({"type": ["string", "null"]}, "5", "5"),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": "number"}, "5", 5),
        ({}, "5", 5),
        ({}, "five", "five"),
        ({}, '"five"', '"five"'),
        ({"enum": ["a", 1]}, "1", 1),
        ({"const": "1"}, "1", "1"),
        ({"anyOf": [{"type": "string"}, {"type": "array"}]}, "[1]", [1]),
        ({"$ref": "#/$defs/s"}, "true", "true"),
        ({"allOf": [{"type": "string"}]}, "true", "true"),
        ({"type": "string"}, "\n\na\n\n", "\n\na\n\n"),
        ({"type": "string"}, "", ""),
    ],
)
def test_what_a_value_without_quotes_means_is_said_by_the_schema(schema, written, meant):
    offered = {"f": {"type": "object", "properties": {"a": schema}, "$defs": {"s": {"type": "string"}}}}
    text = f"<tool_call>\n<function=f>\n<parameter=a>\n{written}\n</parameter>\n</function>\n</tool_call>"
    tokens = ids(QWEN3_CODER, text)
    for cuts in ([], range(len(tokens))):
        answer = run(QWEN3_CODER, tokens, cuts, offered=offered)
        assert answer.parsed == (("f", {"a": meant}),)
        assert json.dumps(answer.parsed[0][1]["a"]) == json.dumps(meant)
