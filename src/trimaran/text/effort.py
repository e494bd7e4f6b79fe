"""What the API's ``reasoning_effort`` asks of a chat template."""

import re
from typing import Any

from trimaran.base.errors import RequestError
from trimaran.text.renderer import Renderer

SWITCHES = ("enable_thinking", "thinking")  # what families call the argument that turns thoughts on and off
THOUGHTS = re.compile(r"<think>|\[THINK\]")


def effort_arguments(effort: str, renderer: Renderer) -> dict[str, Any]:
    """The template's arguments for ``effort``; raises ``RequestError`` when the template would drop it.

    A template that reads ``reasoning_effort`` gets it, if it knows the value; ``none`` turns off the switch that a
    template has, and is what happens anyway where there are no thoughts. A switch knows no degrees.
    """
    switch = next((name for name in SWITCHES if name in renderer.reads), None)
    if "reasoning_effort" in renderer.reads and _knows(renderer, effort):
        return {"reasoning_effort": effort}
    if effort == "none" and switch:
        return {switch: False}
    if effort == "none" and not THOUGHTS.search(renderer.source):
        return {}
    hint = f'; it has chat_template_kwargs {{"{switch}": true}} or false' if switch else ""
    raise RequestError(
        f"the model's chat template does not know reasoning_effort {effort!r}{hint}",
        param="reasoning_effort",
        code="unsupported_parameter",
    )


def _knows(renderer: Renderer, effort: str) -> bool:
    """Whether the template names the value, or renders it otherwise than one that nobody can know."""
    if re.search(rf"""(['"]){re.escape(effort)}\1""", renderer.source):
        return True
    variables: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}], "add_generation_prompt": True}
    try:
        known, unknown = (renderer.run({**variables, "reasoning_effort": value}) for value in (effort, "\0"))
    except Exception:  # the template is somebody's code and may raise anything; it refuses one of the two
        return False
    return known != unknown
