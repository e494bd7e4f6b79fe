import pytest
from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError

from trimaran.base.errors import CheckpointError
from trimaran.text import budget, sandbox
from trimaran.text.budget import TemplateRefusedError
from trimaran.text.sandbox import run_template
from trimaran.text.template_code import TemplateCode


def render(source, **variables):
    return run_template(TemplateCode.of(source).template, variables)


def test_blocks_are_trimmed_as_templates_expect():
    assert render("a\n    {% if true %}\nb\n    {% endif %}\nc") == "a\nb\nc"


def test_json_is_not_escaped_for_html():
    assert render("{{ x | tojson }}", x={"a": "<é> & 'b'"}) == '{"a": "<é> & \'b\'"}'
    assert render("{{ x | tojson(indent=1, sort_keys=true) }}", x={"b": 1, "a": 2}) == '{\n "a": 2,\n "b": 1\n}'


def test_loop_controls_and_generation_blocks():
    source = (
        "{% for i in x %}{% if i == 2 %}{% continue %}{% endif %}{% generation %}{{ i }}{% endgeneration %}{% endfor %}"
    )
    assert render(source, x=[1, 2, 3]) == "13"


def test_the_time_can_be_asked():
    assert render("{{ strftime_now('%Y') }}").isdigit()


def test_a_refusal_has_the_templates_words():
    with pytest.raises(TemplateRefusedError, match=r"^roles must alternate$"):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "source", ["{{ ''.__class__ }}{{ ''.__class__.__mro__ }}", "{{ x.append(1) }}", "{{ x.__init__.__globals__ }}"]
)
def test_a_template_cannot_reach_out_or_change_its_input(source):
    with pytest.raises(TemplateError):
        render(source, x=[1])


DOUBLED = "{% set n = namespace(x='a') %}{% for i in range(99) %}{% set n.x = n.x SIGN n.x %}{% endfor %}"


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 10**9 }}",
        "{{ 10**9 * 'a' }}",
        "{{ [0] * 10**9 }}",
        "{{ 9 ** (9 ** 9) }}",
        "{{ 2 ** 100000 }}",
        "{{ 'a'.center(10**9) }}",
        "{{ 'a'.zfill(10**9) }}",
        "{{ 'a\\t'.expandtabs(10**9) }}",
        "{{ 'a' | center(width=10**9) }}",
        "{{ 1.5 | round(10**9, 'floor') }}",
        "{{ [1] | slice(10**9) | list }}",
        "{{ [1] | batch(10**9, 'x') | list }}",
        "{{ 'a'.encode() * 10**9 }}",
        "{{ 'a'.encode().center(10**9) }}",
        "{{ (1).to_bytes(10**9, 'big') }}",
        "{{ 'a\\nb' | indent(10**9) }}",
        "{{ [1] | tojson(indent=10**9) }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%-*d' % (10**9, 1) }}",
        "{{ '%999999999d' | format(1) }}",
        "{{ '{:>999999999}'.format(1) }}",
        "{{ '{:>{}}'.format(1, 10**9) }}",
        "{{ ('a' * 10**6) | replace('a', 'a' * 10**6) }}",
        "{{ ('a' * 10**6).replace('a', 'a' * 10**6) }}",
        "{{ range(1000) | join('a' * 10**6) }}",
        "{{ ('a' * 10**6).join(range(1000) | map('string') | list) }}",
        "{{ ('a' * 10**6) | list }}",
        DOUBLED.replace("SIGN", "+"),
        DOUBLED.replace("SIGN", "~"),
    ],
)
def test_a_template_cannot_fill_the_memory(source):
    with pytest.raises(SecurityError):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 10**7 ~ 'b' * 10**7 }}",
        "{{ ('a' * 10**6).join(range(9999) | map('string')) }}",
        "{{ range(9999) | map(attribute='x', default='a' * 10**6) | join }}",
        "{{ range(9999) | map(attribute='x', default='a' * 10**6) | list }}",
        "{{ range(9999) | map(attribute='x', default=[0] * 10**5) | sum(start=[]) }}",
        "{{ range(9999) | map('center', 10**5) | list | length }}",
        "{{ ('\n' * 10**5) | indent(10**5) }}",
        "{{ ('\t' * 10**5).expandtabs(10**5) }}",
        "{{ ('a' * 10**6).translate({97: 'a' * 10**6}) }}",
        "{{ ('{0}' * 10**5).format('a' * 10**5) }}",
        "{{ ('{:>999}' * 10**6).format(1) }}",
        "{{ ('%(a)s' * 10**5) % {'a': 'a' * 10**5} }}",
        "{{ '%99999999d'.encode() % 1 }}",
        "{{ range(999) | list | tojson(indent=10**5) }}",
        "{{ range(999) | list | tojson(indent='a' * 10**6) }}",
        "{{ range(999) | list | tojson(separators=(',' * 10**6, ':')) }}",
        "{% macro f() %}{% for i in range(999) %}{{ 'a' * 10**6 }}{% endfor %}{% endmacro %}{{ f() | length }}",
        "{% set x %}{% for i in range(999) %}{{ 'a' * 10**6 }}{% endfor %}{% endset %}{{ x | length }}",
        "{{ strftime_now('%c' * 10**6) }}",
    ],
)
def test_nor_in_many_steps(source):
    with pytest.raises((SecurityError, TemplateRefusedError)):
        render(source)


def test_all_that_a_template_makes_has_a_limit(monkeypatch):
    monkeypatch.setattr(budget, "MAX_MADE", 1000)
    assert len(render("{% for i in range(9) %}{{ 'a' * 100 }}{% endfor %}")) == 900
    with pytest.raises(TemplateRefusedError, match="more than 1000 characters"):
        render("{% for i in range(11) %}{% set x = 'a' * 100 %}{% endfor %}")


NESTED = "{% set n = namespace(x=['a']) %}{% for i in range(60) %}{% set n.x = VALUE %}{% endfor %}"


@pytest.mark.parametrize("value", ["[n.x, n.x]", "(n.x, n.x)", "{'a': n.x, 'b': n.x}", "dict(a=n.x, b=n.x)"])
@pytest.mark.parametrize("use", ["{{ n.x }}", "{{ n.x | tojson }}", "{{ n.x == n.x }}", "{{ n.x | string | length }}"])
def test_a_list_that_holds_a_list_many_times_has_a_limit(value, use):
    with pytest.raises(SecurityError):
        render(NESTED.replace("VALUE", value) + use)


def test_namespaces_do_not_show_what_they_hold():
    source = "{% set a = namespace() %}{% set b = namespace(x=a, y=a) %}{% set a.z = b %}{{ b }}"
    assert render(source) == "<Namespace>"


@pytest.mark.parametrize(
    "source",
    [
        "{% set n = namespace(x=3) %}{% for i in range(60) %}{% set n.x = n.x * n.x %}{% endfor %}",
        "{{ ('f' * 10**6) | int(base=16) }}",
        "{{ x // x }}",
        "{{ ('a' * 10**7).rfind('b' + 'a' * 10**6) }}",
        "{{ ('a' * 10**7).strip('b' * 10**6 + 'a') }}",
        "{{ ('a' * 10**7) | trim('b' * 10**6 + 'a') }}",
        "{{ ('a' * 10**6).encode('punycode') }}",
        "{{ ('<!--' * 10**5) | striptags }}",
        "{{ ('a.' * 10**5) | urlize }}",
        "{{ range(99999) | list | pprint }}",
    ],
)
def test_no_single_operation_takes_long(source):
    with pytest.raises(SecurityError):
        render(source, x=1 << 10**6)


def test_lists_that_grow_by_one_are_fine():
    source = "{% set n = namespace(x=[]) %}{% for i in range(1000) %}{% set n.x = n.x + [{'a': i}] %}{% endfor %}"
    assert render(source + "{{ n.x | length }}") == "1000"


def test_a_lazy_filter_gives_a_list():
    source = "{% set x = [1, 2] | map('string') %}{{ x | length }}{{ x | first }}{{ x | join('-') }}{{ x[1] }}"
    assert render(source) == "211-22"


@pytest.mark.parametrize(
    "source",
    ["{{ " + "(" * 300 + "1" + ")" * 300 + " }}", "{% if a %}" * 200 + "{% endif %}" * 200, "{{ 9" + "9" * 5000 + " }}",
     "{{ 0x" + "f" * 5000 + " }}", "x" * (1 << 20) + "x"],
)  # fmt: skip
def test_what_cannot_be_compiled_is_a_damaged_checkpoint(source):
    with pytest.raises(CheckpointError, match="chat template"):
        TemplateCode.of(source)


def test_no_filler_text():
    with pytest.raises(TemplateError, match="lipsum"):
        render("{{ lipsum(n=10**6) }}")


def test_ordinary_formats_are_allowed():
    assert render("{{ '**%s** %5.2f%%' % ('a', 1) }}") == "**a**  1.00%"
    assert render("{{ '{}: {:>3} {{x}}'.format('a', 1) }}") == "a:   1 {x}"
    assert render("{{ 'a b' | replace(' ', '--') | center(8) }}{{ 'ab' | list }}") == "  a--b  ['a', 'b']"
    assert render("{{ '%s-%s' | format(1, 2) }}{{ [1] | tojson(indent=2) }}") == "1-2[\n  1\n]"


def test_small_products_are_allowed():
    assert render("{{ '-' * 3 }}{{ 2 ** 10 }}{{ 2.5 * 2 }}{{ 2 ** -1 }}") == "---10245.00.5"


def test_output_has_a_limit(monkeypatch):
    monkeypatch.setattr(sandbox, "MAX_CHARACTERS", 100)
    assert len(render("{% for i in range(100) %}x{% endfor %}")) == 100
    with pytest.raises(TemplateRefusedError, match="more than 100 characters"):
        render("{% for i in range(101) %}x{% endfor %}")


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{{ x[0] }}{% endfor %}",
        "{% for i in range(99999) %}{{ i * i }}{% endfor %}",
        "{% set r = range(99999) %}{% for i in r %}{% for j in r %}{% endfor %}{% endfor %}",
    ],
)
def test_time_has_a_limit(monkeypatch, source):
    monkeypatch.setattr(sandbox, "MAX_SECONDS", 0.01)
    with pytest.raises(TemplateRefusedError, match="seconds"):
        render(source, x=[1])


def test_compiling_looks_at_each_expression_once(monkeypatch):
    """Not again for each expression around it: some hundred signs before a name took seconds."""
    looks, as_const = [], nodes.Neg.as_const

    def counted(node, context=None):
        looks.append(node)
        return as_const(node, context)

    monkeypatch.setattr(nodes.Neg, "as_const", counted)
    TemplateCode.of("{{ " + "-" * 50 + "x }}")
    assert len(looks) <= 100
