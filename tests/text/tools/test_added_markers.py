"""Vocabularies in which marks are tokens of their own but not control tokens, as those of most families are."""

import json

import pytest
from tests.text.template_families import Family as Vocabulary
from tests.text.template_vocabulary import ids_of, tokenizer_of

from trimaran.base.messages import Token, Tokens
from trimaran.base.sampling import SamplingParams
from trimaran.engine.constraints.grammars import compile_grammar
from trimaran.engine.constraints.tokenizer import grammar_tokenizer
from trimaran.engine.constraints.tokens import TokenTable
from trimaran.text.choice import Choice
from trimaran.text.tools.answer_format import AnswerFormat
from trimaran.text.tools.answer_grammar import Wanted
from trimaran.text.tools.choice_reader import Answer, ChoiceReader
from trimaran.text.tools.families import THINK, TOOL_FORMATS

from .test_answer_grammar import ALL
from .transcripts import DEEPSEEK_V31, DEEPSEEK_V32, GLM47, HERMES, KIMI_K2, MINIMAX_M2, OFFERED

THOUGHTS = ("<think>", "</think>")
TAGS = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
MARKS = [
    (KIMI_K2, (*KIMI_K2.control, *THOUGHTS)),
    (HERMES, ("<tool_call>", "</tool_call>", *THOUGHTS)),
    (GLM47, ("<tool_call>", "</tool_call>", *TAGS, *THOUGHTS)),
    (MINIMAX_M2, ("<minimax:tool_call>", "</minimax:tool_call>", *THOUGHTS)),
    (DEEPSEEK_V31, DEEPSEEK_V31.control),
    (DEEPSEEK_V32, DEEPSEEK_V32.control),
]


@pytest.mark.parametrize(("family", "marks"), MARKS, ids=lambda value: getattr(value, "format", None))
def test_marks_that_are_ordinary_tokens(family, marks):
    vocabulary = Vocabulary(family.format, ("<eos>",), added=marks, eos="<eos>")
    tokenizer = tokenizer_of(vocabulary)
    form = AnswerFormat(tokenizer, TOOL_FORMATS[family.format], THINK)
    control = tokenizer.special_ids | {token.id for token in tokenizer.control}
    table = [tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]
    compiled = grammar_tokenizer(TokenTable(table, control, tokenizer.eos_ids, tokenizer.encode))
    for transcript in family.good:
        tokens = ids_of(vocabulary, transcript.text)
        choice = Choice(0, tokenizer, SamplingParams(), message=True)
        reader = ChoiceReader(form.form(transcript.thinking, OFFERED), enforced=True)
        said = [Tokens("x", [Token(token)]) for token in tokens] + [Tokens("x", [], "stop")]
        answer = Answer.of([delta for message in said for delta in reader.read(choice.feed(message))])
        assert tuple((call.name, json.loads(call.arguments)) for call in answer.calls) == transcript.calls
        assert (answer.content, answer.thought) == (transcript.content, transcript.thought)
        grammar = form.grammar(Wanted(ALL, shown=True), transcript.thinking)
        matcher = compile_grammar(grammar, compiled).deep_copy()
        taken = matcher.validate_tokens(tokens)
        assert matcher.consume_tokens(tokens[:taken])
        assert (taken == len(tokens) and matcher.is_accepting()) != transcript.loose
