"""Every family's chat format against what the vendor's own code renders."""

import json

import pytest

from trimaran.text.deepseek_v32 import DeepSeekV32
from trimaran.text.mistral import VERSIONS, Mistral
from trimaran.text.template import ChatTemplate

from .template_families import FAMILIES, TEMPLATES
from .template_vocabulary import expected_ids, tokenizer_of

CODE = {"deepseek-v3.2": DeepSeekV32()} | {f"tekken-v{version}": Mistral(version) for version in VERSIONS}
GOLDEN = {
    name: json.loads(path.read_text("utf-8"))["rendered"]
    for name in FAMILIES
    if (path := TEMPLATES / f"{name}.json").is_file()
}


@pytest.fixture(scope="module")
def templates():
    jinja = {name: TEMPLATES / f"{name}.jinja" for name in GOLDEN if name not in CODE}
    sources = {**CODE, **{name: path.read_text("utf-8") for name, path in jinja.items()}}
    return {name: ChatTemplate({"default": source}, tokenizer_of(FAMILIES[name])) for name, source in sources.items()}


@pytest.mark.parametrize(("name", "case"), [(name, case) for name in GOLDEN for case in GOLDEN[name]])
def test_ids_are_those_of_the_vendors_text(templates, name, case):
    """Also where somebody types every control token of the family: that stays text."""
    family = FAMILIES[name]
    conversation = family.cases()[case]
    ids = templates[name].render(conversation.messages, **conversation.kwargs)
    assert ids == expected_ids(family, GOLDEN[name], case, GOLDEN[name][case])


@pytest.mark.parametrize("name", GOLDEN)
def test_every_conversation_has_a_golden(name):
    assert GOLDEN[name].keys() == FAMILIES[name].cases().keys()


@pytest.mark.parametrize(("name", "case"), [(n, c) for n in GOLDEN for c in GOLDEN[n] if c != "injection"])
def test_a_typed_token_changes_nothing_else(templates, name, case):
    """Once somebody types a control token, all others must have come from the template: none of them is lost."""
    family = FAMILIES[name]
    conversation = family.cases()[case]
    *before, last = conversation.messages

    def render(typed):
        message = {**last, "content": f"<{last['content'].strip()}{typed}."}
        ids = templates[name].render([*before, message], **conversation.kwargs)
        return [chr(token) if token < 256 else token for token in ids]

    typed = family.control[0]
    careful, usual = render(typed), render("TYPED")
    at = next(at for at in range(len(usual)) if usual[at : at + 5] == [*"TYPED"])
    assert careful == [*usual[:at], *typed.encode().decode("latin-1"), *usual[at + 5 :]]
