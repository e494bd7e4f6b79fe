"""Chat templates to begin with, and a generator of wild ones: whatever Jinja can be asked to do, in any order."""

from random import Random

CONVERSATION = [
    {"role": "system", "content": "You are <|im_end|> brief."},
    {"role": "user", "content": "a" * 300 + "\n\t %s {0} <think>"},
    {"role": "assistant", "content": "b [1, 2]"},
    {"role": "user", "content": "c"},
]
SOURCES = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] | trim }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "{%- macro say(message, first=false) %}{{ '[INST] ' if message.role == 'user' }}{{ message.content }}{% endmacro %}"
    "{{ bos_token }}{% for message in messages %}{{ say(message, loop.first) }}{% endfor %}",
    "{% set ns = namespace(last=-1, text='') %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% set ns.text = ns.text ~ m.content.split('\n')[-1] %}{% endfor %}"
    "{% for m in messages[::-1] %}{{ m.content | tojson if loop.index0 > ns.last else m.content.strip() }}{% endfor %}",
    "{% if tools %}{{ tools | tojson(indent=2) }}{% endif %}{% if messages[0].role == 'system' %}"
    "{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}"
    "{% if rest | selectattr('role', 'equalto', 'tool') | list | length > 0 %}{{ raise_exception('no tools') }}"
    "{% endif %}{% for m in rest %}{{ loop.cycle('A: ', 'B: ') + m['content'] | replace('a', 'b') }}{% endfor %}",
)
WORDS = (
    "{{", "}}", "{%", "%}", "{#", "#}", "{% for x in messages %}", "{% endfor %}", "{% if x %}", "{% else %}",
    "{% endif %}", "{% macro f(a) %}", "{% endmacro %}", "{{ f(f) }}", "{% set x = ", " | ", "loop", "messages",
    "{% raw %}", "{% endraw %}", "{% call f() %}", "{% include 'x' %}", "{% import 'x' as y %}", "{% extends 'x' %}",
    "{% filter upper %}", "{% endfilter %}", "{% break %}", "{% block a %}", "namespace(", "self", "__class__", "1e999",
    "'" * 3, "\\", "(" * 90, "[" * 90, "not " * 200, "- " * 300, "0x", "**", "~", "%}" * 9, "\0", "<|im_end|>",
)  # fmt: skip
_ATOMS = (
    "messages", "messages[0]", "messages[-1].content", "bos_token", "x", "y", "loop", "n", "n.a", "range(9)", "none",
    "range(99999)", "true", "0", "1", "-1", "7", "262143", "99999999999", "1.5", "1e308", "''", "'a'", "'%s'", "'{}'",
    "'aé\\U0001F600'", "[]", "[1, [2, 'b']]", "{}", "{'k': [1]}", "dict(a=1)", "namespace(a=1)", "cycler('a', 'b')",
    "f", "varargs", "strftime_now('%c')", "undefined_name", "messages[0].content.split()", "(1, 2)",
)  # fmt: skip
_FILTERS = (
    "abs", "attr('x')", "batch(3)", "capitalize", "center(999)", "default(1)", "dictsort", "escape", "filesizeformat",
    "first", "float", "forceescape", "format(1)", "groupby('role')", "indent(9)", "int", "items", "join(',')", "last",
    "length", "list", "lower", "map('upper')", "map('list')", "map('center', 9999)", "map(attribute='content')", "max",
    "min", "pprint", "random", "reject('in', 'ab')", "rejectattr('role')", "replace('a', 'bb')", "reverse", "round(3)",
    "safe", "select('equalto', 1)", "selectattr('role', 'in', ['user'])", "slice(3)", "sort", "string", "striptags",
    "sum(start=[])", "sum", "title", "tojson", "trim", "truncate(3)", "unique", "upper", "urlencode", "urlize",
    "wordcount", "wordwrap(3)", "xmlattr",
)  # fmt: skip
_BINARY = ("+", "-", "*", "/", "//", "%", "**", "~", "and", "or", "==", "!=", "<", ">=", "in", "not in")
_METHODS = (
    "upper()", "split('a')", "join(x)", "replace('a', x)", "format(x, x)", "center(99)", "encode()", "items()",
    "count('a')", "splitlines()", "ljust(9999)", "zfill(9999)", "get('a')", "keys()", "index('a')", "title()",
    "translate({97: 'bbbb'})", "expandtabs(999)", "partition('a')", "startswith('a')", "copy()", "hex()",
)  # fmt: skip


def wild_template(random: Random) -> str:
    """A template of up to six statements, most of which make something large out of what was made before."""
    parts = ["{% set n = namespace(a='ab', b=[1]) %}{% set x = 'ab' %}{% set y = [1, 'c'] %}"]
    for _ in range(random.choice((1, 1, 2, 3, 6))):
        one = _expression(random, random.choice((1, 2, 2, 3)))
        parts.append(
            random.choice(
                (
                    f"{{{{ {one} }}}}",
                    f"{{% set x = {one} %}}",
                    f"{{% set y = {one} %}}",
                    f"{{% set n.a = {one} %}}",
                    f"{{% for i in {one} %}}{{{{ i }}}}{{% if loop.index > 99 %}}{{% break %}}{{% endif %}}"
                    "{% endfor %}",
                    f"{{% for i in range({random.choice((3, 60, 400))}) %}}{{% set n.a = {one} %}}{{% endfor %}}",
                    f"{{% for i in range(60) %}}{{% set n.a = [n.a, n.a] %}}{{% endfor %}}{{{{ {one} }}}}",
                    f"{{% for i in range(60) %}}{{% set n.a = {{'k': n.a, 'l': n.a}} %}}{{% endfor %}}{{{{ {one} }}}}",
                    f"{{% for i in range(60) %}}{{% set n.a = n.a + n.a %}}{{% endfor %}}{{{{ {one} }}}}",
                    f"{{% if {one} %}}{{{{ x }}}}{{% endif %}}",
                    f"{{% macro f(a) %}}{{{{ {one} }}}}{{{{ f(a) }}}}{{% endmacro %}}{{{{ f(x) }}}}",
                    f"{{% for a in [y] recursive %}}{{{{ loop({one}) }}}}{{% endfor %}}",
                    f"{{% filter {random.choice(_FILTERS)} %}}{{{{ {one} }}}}{{% endfilter %}}",
                    f"{{% set z %}}{{{{ {one} }}}}{{% endset %}}{{{{ z * 99 }}}}",
                )
            )
        )
    return "".join(parts)


def _expression(random: Random, depth: int) -> str:
    if depth == 0 or random.random() < 0.15:
        return random.choice(_ATOMS)

    def inner() -> str:
        return _expression(random, depth - 1)

    match random.randrange(9):
        case 0 | 1:
            return f"({inner()} {random.choice(_BINARY)} {inner()})"
        case 2 | 3:
            return f"({inner()}) | {random.choice(_FILTERS)}"
        case 4:
            return f"({inner()}).{random.choice(_METHODS)}"
        case 5:
            return f"[{inner()}, {inner()}]"
        case 6:
            return f"({inner()})[{random.choice(('0', '-1', '1:', '::-1', inner()))}]"
        case 7:
            return f"({inner()} if {inner()} else {inner()})"
        case _:
            return f"({inner()}) is {random.choice(('defined', 'mapping', 'iterable', 'string', 'sameas(x)'))}"
