import pytest

from trimaran.base.errors import RequestError
from trimaran.text.deepseek_v32 import DeepSeekV32
from trimaran.text.effort import effort_arguments
from trimaran.text.template_code import TemplateCode

GLM_5_2 = (
    "{% set effort = 'high' if reasoning_effort is defined and reasoning_effort == 'high' else 'max' %}"
    "{% if enable_thinking is not defined or enable_thinking %}Reasoning Effort: {{ effort | capitalize }}{% endif %}"
    "<|assistant|>{{ '<think></think>' if enable_thinking is defined and not enable_thinking else '<think>' }}"
)
PRINTED = "Reasoning: {{ reasoning_effort }}"
CHOOSY = "{% if reasoning_effort not in ['low'] %}{{ raise_exception('no') }}{% endif %}"
SWITCH = "{% if enable_thinking is false %}<think></think>{% endif %}"
NEITHER = "{{ messages[0].content }}"
ALWAYS = "<think>{{ messages[0].content }}"


@pytest.mark.parametrize(
    ("source", "effort", "arguments"),
    [
        (GLM_5_2, "high", {"reasoning_effort": "high"}),
        (GLM_5_2, "max", {"reasoning_effort": "max"}),
        (GLM_5_2, "none", {"enable_thinking": False}),
        (GLM_5_2, "low", None),
        (GLM_5_2, "medium", None),
        (PRINTED, "low", {"reasoning_effort": "low"}),
        (CHOOSY, "low", {"reasoning_effort": "low"}),
        (CHOOSY, "high", None),
        (SWITCH, "none", {"enable_thinking": False}),
        (SWITCH, "high", None),
        (NEITHER, "none", {}),
        (NEITHER, "low", None),
        (ALWAYS, "none", None),
    ],
)
def test_effort_reaches_the_template_or_is_refused(source, effort, arguments):
    code = TemplateCode.of(source)
    if arguments is not None:
        assert effort_arguments(effort, code) == arguments
        return
    with pytest.raises(RequestError, match=f"reasoning_effort '{effort}'") as caught:
        effort_arguments(effort, code)
    assert caught.value.param == "reasoning_effort"


def test_a_switch_is_pointed_to():
    with pytest.raises(RequestError, match=r'chat_template_kwargs \{"enable_thinking": true\}'):
        effort_arguments("high", DeepSeekV32())
    assert effort_arguments("none", DeepSeekV32()) == {"enable_thinking": False}
