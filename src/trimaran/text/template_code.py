"""Jinja source to a template that keeps account of its own literals (``written.py``)."""

import re
from dataclasses import dataclass
from typing import Any

from jinja2 import Template, TemplateSyntaxError, nodes
from jinja2.visitor import NodeTransformer

from trimaran.base.errors import CheckpointError
from trimaran.text.chat_messages import Wants
from trimaran.text.sandbox import ChatEnvironment, run_template
from trimaran.text.written import Written

_AS_OBJECTS = re.compile(r"\w*arg(ument)?s?\w*['\"\]]*\s*(\|\s*tojson|\.\s*items\s*\()|arguments\s*\|\s*items")
_AS_NULL = re.compile(r"content['\"\]]*\s+is\s+(not\s+)?none")


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
            return cls(environment.from_string(_Traced().visit(tree)), source, reads, _wants(source))
        except TemplateSyntaxError as error:
            where = f"line {error.lineno}: {error}"
            raise CheckpointError(f"the model's chat template is not valid Jinja, {where}") from error

    def run(self, variables: dict[str, Any]) -> Written:
        return run_template(self.template, variables)


def _wants(source: str) -> Wants:
    """Templates do not say what they were written for; their authors' habits tell it apart."""
    return Wants(
        developer="developer" in source,
        objects=_AS_OBJECTS.search(source) is not None,
        null=_AS_NULL.search(source) is not None,
    )


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
    return call.set_lineno(at.lineno)  # type: ignore[return-value]
