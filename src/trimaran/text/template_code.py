"""Jinja source to a template that keeps account of its own literals (``written.py``)."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from jinja2 import Template, TemplateSyntaxError, nodes
from jinja2.visitor import NodeTransformer

from trimaran.base.errors import CheckpointError
from trimaran.text.budget import MAX_BITS
from trimaran.text.chat_messages import Wants
from trimaran.text.sandbox import ChatEnvironment, run_template
from trimaran.text.written import Written

MAX_SOURCE = 1 << 20  # characters; the longest known have some ten thousand


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
        if len(source) > MAX_SOURCE:
            raise CheckpointError(f"the model's chat template has {len(source)} characters; there may be {MAX_SOURCE}")
        environment = ChatEnvironment()
        try:
            tree = environment.parse(source)
            reads = frozenset(name.name for name in tree.find_all(nodes.Name) if name.ctx == "load")
            template = environment.from_string(_Traced().visit(tree))
        except TemplateSyntaxError as error:
            where = f"line {error.lineno}: {error}"
            raise CheckpointError(f"the model's chat template is not valid Jinja, {where}") from error
        except (SyntaxError, RecursionError, MemoryError, ValueError, OverflowError) as error:  # of Python's compiler
            raise CheckpointError(f"the model's chat template cannot be compiled: {error}") from error
        return cls(template, source, reads, Wants("developer" in source, *_form_of_calls(template)))

    def run(self, variables: dict[str, Any]) -> Written:
        return run_template(self.template, variables)


def _form_of_calls(template: Template) -> tuple[bool, bool, bool]:
    """Whether arguments come as objects, and the content beside calls as ``None``: the first form that goes through.

    Templates do not say what they were written for. In the wrong form some fail, and others leave the calls out. The
    last tells whether any form goes through.
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
                return objects, null, True
    return True, False, False


class _Traced(NodeTransformer):
    """Has literals and ``~`` make ``Written`` text, lists weighed, and loops look at the clock."""

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:
        return _call("literal", nodes.Const(node.data), node)

    def visit_Const(self, node: nodes.Const) -> nodes.Node:
        if isinstance(node.value, int) and node.value.bit_length() > MAX_BITS:
            raise TemplateSyntaxError("a number is too large", node.lineno)
        return _call("literal", node, node) if isinstance(node.value, str) and node.value else node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        return _call("tilde", nodes.List([self.visit(part) for part in node.nodes]), node)

    def visit_List(self, node: nodes.List) -> nodes.Node:
        return self._weighed(node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        return self._weighed(node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        return self._weighed(node) if node.ctx == "load" else node

    def _weighed(self, node: nodes.List | nodes.Dict | nodes.Tuple) -> nodes.Node:
        constant = all(isinstance(item, nodes.Const) for item in node.items)
        self.generic_visit(node)
        return node if constant else _call("made", node, node)

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
