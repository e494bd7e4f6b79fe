"""What turns a conversation into text: a Jinja template, or code where a model ships none."""

from typing import Any, Protocol

from trimaran.text.chat_messages import Wants
from trimaran.text.written import Written


class Renderer(Protocol):
    """Safe to use from several threads."""

    @property
    def source(self) -> str:
        """Text that holds every control token which the renderer may write."""

    @property
    def reads(self) -> frozenset[str]:
        """Names of the arguments that it looks at: ``tools``, ``enable_thinking``, …"""

    @property
    def wants(self) -> Wants:
        """The form of messages that it was written for."""

    def run(self, variables: dict[str, Any]) -> Written:
        """The prompt. ``variables`` are the arguments, ``messages``, ``add_generation_prompt`` and the tokenizer's
        named tokens. May raise anything; ``TemplateRefusedError`` where the words are meant for the client.
        """
