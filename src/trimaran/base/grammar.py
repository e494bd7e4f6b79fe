"""What an answer must look like: a request's grammar, as text that the engine compiles."""

from typing import Literal, get_args

import msgspec

from trimaran.base.errors import RequestError

MAX_GRAMMAR_LENGTH = 1 << 18  # characters

GrammarKind = Literal["json_schema", "regex", "choice", "lark", "ebnf", "structural_tag", "constraint"]


class Grammar(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Text in the language that ``kind`` names; an answer is a word of it, from its first token to its end.

    * ``json_schema``: a JSON Schema; answers are compact JSON, with white space only where ``whitespace`` says so.
    * ``regex``: a regular expression (syntax of Rust's ``regex``), which matches the whole answer.
    * ``choice``: a JSON array of strings, one of which is the answer.
    * ``lark``: llguidance's dialect of Lark. ``<|name|>`` in it is a control token, ``%json {…}`` a schema.
    * ``ebnf``: Lark, or GBNF as llama.cpp writes it.
    * ``structural_tag``: JSON as in ``response_format``: free text with structures in it.
    * ``constraint``: a JSON object with the ``name`` of an installed ``TokenConstraint`` and its ``argument``.

    ``field`` is where a client wrote it, for errors. Raises ``RequestError`` for a text that is too long and for a
    kind that there is not.
    """

    kind: GrammarKind
    text: str
    field: str = "grammar"
    whitespace: str = ""  # of json_schema: a regular expression for what may stand between two tokens of JSON

    def __post_init__(self) -> None:
        if self.kind not in get_args(GrammarKind):
            known = ", ".join(get_args(GrammarKind))
            raise RequestError(f"{self.field} has the kind {self.kind!r:.80}; kinds are {known}", param=self.field)
        if len(self.text) > MAX_GRAMMAR_LENGTH:
            raise RequestError(
                f"{self.field} has {len(self.text)} characters, the limit is {MAX_GRAMMAR_LENGTH}", param=self.field
            )
