import pytest

from trimaran.base.errors import RequestError
from trimaran.text.chat_messages import ROLES, Wants, check_messages, contents


def check(*messages, **wants):
    return check_messages(messages, Wants(**wants))


@pytest.mark.parametrize("role", ROLES)
def test_roles_of_the_api_are_taken(role):
    assert check({"role": role, "content": "x"}, developer=True) == [{"role": role, "content": "x"}]


def test_developers_speak_as_the_system_unless_the_template_knows_them():
    assert check({"role": "developer", "content": "x"}) == [{"role": "system", "content": "x"}]


def test_text_parts_become_one_text():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert check({"role": "user", "content": parts, "name": "n"}) == [{"role": "user", "content": "a\nb", "name": "n"}]


def test_only_an_assistant_that_calls_tools_may_say_nothing():
    function = {"name": "f", "arguments": "{}"}
    calls = {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": function}]}
    assert check(calls) == [{**calls, "content": ""}]
    assert check(calls, null=True) == [calls]
    silent = {key: value for key, value in calls.items() if key != "content"}
    assert check(silent, null=True) == [calls]


@pytest.mark.parametrize("given", ['{"é":1}', {"é": 1}])
def test_arguments_of_calls_take_the_form_that_a_template_wants(given):
    def arguments(**wants):
        call = {"id": "1", "function": {"name": "f", "arguments": given}}
        (message,) = check({"role": "assistant", "content": "x", "tool_calls": [call]}, **wants)
        assert message["tool_calls"][0] | {"function": {}} == {"type": "function", "id": "1", "function": {}}
        return message["tool_calls"][0]["function"]["arguments"]

    assert arguments(objects=True) == {"é": 1}
    assert arguments() == ('{"é":1}' if isinstance(given, str) else '{"é": 1}')


@pytest.mark.parametrize(
    ("calls", "param", "text"),
    [
        (3, "messages[0].tool_calls", "a list"),
        (["x"], "messages[0].tool_calls[0]", "function.name"),
        ([{"function": {}}], "messages[0].tool_calls[0]", "function.name"),
        ([{"function": {"name": "f", "arguments": "{"}}], "messages[0].tool_calls[0].function.arguments", "not JSON"),
        (
            [{"function": {"name": "f", "arguments": "[" * 100_000}}],
            "messages[0].tool_calls[0].function.arguments",
            "not JSON",
        ),
        ([{"function": {"name": "f", "arguments": "[]"}}], "messages[0].tool_calls[0].function.arguments", "object"),
    ],
)
def test_what_is_wrong_with_a_call_is_named(calls, param, text):
    with pytest.raises(RequestError, match=text) as caught:
        check({"role": "assistant", "content": "x", "tool_calls": calls})
    assert caught.value.param == param


def test_a_message_without_calls_has_no_list_of_them():
    assert check({"role": "assistant", "content": "x", "tool_calls": []}) == [{"role": "assistant", "content": "x"}]


def test_the_callers_messages_are_not_changed():
    message = {"role": "developer", "content": [{"type": "text", "text": "a"}]}
    check(message)
    assert message == {"role": "developer", "content": [{"type": "text", "text": "a"}]}


@pytest.mark.parametrize(
    ("message", "param", "text"),
    [
        ("hi", "messages[0]", "object"),
        ({"content": "x"}, "messages[0].role", "must be one of system"),
        ({"role": "im_end", "content": "x"}, "messages[0].role", "'im_end'"),
        ({"role": ["user"], "content": "x"}, "messages[0].role", "'user'"),
        ({"role": "user"}, "messages[0].content", "text"),
        ({"role": "user", "content": None}, "messages[0].content", "text"),
        ({"role": "assistant", "content": None}, "messages[0].content", "text"),
        ({"role": "user", "content": 3}, "messages[0].content", "text"),
        ({"role": "user", "content": ["x"]}, "messages[0].content[0]", "type None"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages[0].content[0]", "'image_url'"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text", "must be a string"),
    ],
)
def test_what_is_wrong_is_named(message, param, text):
    with pytest.raises(RequestError, match=text) as caught:
        check(message)
    assert caught.value.param == param


def test_an_empty_conversation_is_refused():
    with pytest.raises(RequestError, match="at least one message"):
        check()


def test_contents_of_messages_in_any_shape():
    parts = [{"type": "text", "text": "a"}, "b", {"type": "image_url"}, {"text": 5}, 6]
    assert list(contents([{"content": "x"}, {"content": parts}, {"content": None}, {}, "hi"])) == ["x", "a", "b"]
