import pytest

from trimaran.base.errors import RequestError
from trimaran.text.chat_messages import ROLES, check_messages, contents


def check(*messages, developer=False):
    return check_messages(messages, developer=developer)


@pytest.mark.parametrize("role", ROLES)
def test_roles_of_the_api_are_taken(role):
    assert check({"role": role, "content": "x"}, developer=True) == [{"role": role, "content": "x"}]


def test_developers_speak_as_the_system_unless_the_template_knows_them():
    assert check({"role": "developer", "content": "x"}) == [{"role": "system", "content": "x"}]


def test_text_parts_become_one_text():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert check({"role": "user", "content": parts, "name": "n"}) == [{"role": "user", "content": "a\nb", "name": "n"}]


def test_only_an_assistant_that_calls_tools_may_say_nothing():
    calls = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}
    assert check(calls) == [calls]


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
