"""Jinja source to a template that keeps account of its own literals (``written.py``)."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from jinja2 import Template, TemplateSyntaxError, nodes
from jinja2.visitor import NodeTransformer

from trimaran.base.errors import CheckpointError
from trimaran.text.chat_messages import Wants
from trimaran.text.sandbox import ChatEnvironment, run_template
from trimaran.text.written import Written


@dataclass(frozen=True)
class TemplateCode:
    """A compiled template; ``reads`` are the names of variables that it looks at."""

    template: Template
    source: str
    reads: frozenset[str]
    wants: Wants

    @classmethod
    def of(cls, source: str) -> "TemplateCode":
        """Raises ``CheckpointError`` that names the line when ``source`` is not valid Jinja."""
        environment = ChatEnvironment()
        try:
            tree = environment.parse(source)
            reads = frozenset(name.name for name in tree.find_all(nodes.Name) if name.ctx == "load")
            template = environment.from_string(_Traced().visit(tree))
        except TemplateSyntaxError as error:
            where = f"line {error.lineno}: {error}"
            raise CheckpointError(f"the model's chat template is not valid Jinja, {where}") from error
        return cls(template, source, reads, Wants("developer" in source, *_form_of_calls(template)))

    def run(self, variables: dict[str, Any]) -> Written:
        return run_template(self.template, variables)


def _form_of_calls(template: Template) -> tuple[bool, bool]:
    """Whether arguments come as objects, and the content beside calls as ``None``: the first form that goes through.

    Templates do not say what they were written for. In the wrong form some fail, and others leave the calls out.
    """
    for objects, null in ((True, False), (False, False), (True, True), (False, True)):
        function = {"name": "a_name", "arguments": {"a_key": "a_value"} if objects else '{"a_key": "a_value"}'}
        call = {"id": "aaaaaaaaa", "type": "function", "function": function}
        messages = [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": None if null else "", "tool_calls": [call]},
            {"role": "tool", "content": "a", "tool_call_id": call["id"]},
        ]
        variables = {"messages": messages, "tools": None, "bos_token": "", "eos_token": ""}
        with suppress(Exception):  # the template is somebody's code and may raise anything
            text = run_template(template, variables)
            if all(part in text for part in ("a_name", "a_key", "a_value")):
                return objects, null
    return True, False


class _Traced(NodeTransformer):
    """Has literals and ``~`` make ``Written`` text, and loops look at the clock."""

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:
        return _call("literal", nodes.Const(node.data), node)

    def visit_Const(self, node: nodes.Const) -> nodes.Node:
        return _call("literal", node, node) if isinstance(node.value, str) and node.value else node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        return _call("tilde", nodes.List([self.visit(part) for part in node.nodes]), node)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        node.node = self.visit(node.node)
        if not isinstance(node.arg, nodes.Const):  # a key is no text
            node.arg = self.visit(node.arg)
        return node

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_call("check_time", None, node), lineno=node.lineno))
        return node


def _call(method: str, argument: nodes.Expr | None, at: nodes.Node) -> nodes.Call:
    arguments: list[Any] = [] if argument is None else [argument]
    call = nodes.Call(nodes.EnvironmentAttribute(method), arguments, [], None, None)
    return call.set_lineno(at.lineno)  # type: ignore[return-value]  # jinja2 says Node
