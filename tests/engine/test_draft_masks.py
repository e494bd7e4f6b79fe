"""Masks along a draft are those that a matcher has which goes there, and leave the matcher where it was."""

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher
from tests.text.tools.parsing import Family, tokenizer
from tests.text.tools.test_answer_grammar import compiled, grammar_of, label, vocabulary
from tests.text.tools.transcripts import FAMILIES

from trimaran.engine.constraints.grammars import Grammars
from trimaran.engine.constraints.matcher import UInt32

LIKELY = frozenset(b'<>"}]/[\n{')  # of texts, what ends something


def mask_of(matcher: LLMatcher, words: int) -> UInt32:
    return np.frombuffer(matcher.compute_bitmask(), np.uint32)[:words]


def any_of(mask: UInt32, vocab: int, random: Random) -> int:
    allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), count=vocab, bitorder="little")).tolist()
    likely = [token for token in allowed if token >= 256 or token in LIKELY]
    return int(random.choice(likely if likely and random.random() < 0.6 else allowed))


@pytest.mark.parametrize("family", FAMILIES, ids=label)
@settings(max_examples=8, deadline=None)
@given(must=st.booleans(), random=st.randoms(use_true_random=False))
def test_masks_along_a_draft(family: Family, must: bool, random: Random) -> None:
    """Calls of tools, with what llguidance knows of control tokens; steps of a draft, of which a part is taken."""
    vocab = tokenizer(family).vocab_size
    words = -(-vocab // 32)
    beginning = compiled(family, grammar_of(family, must=must))
    kind = Grammars(1, 16, vocabulary(family), words)
    matcher, plain = kind.start(beginning, "tools"), beginning.deep_copy()
    taken = 0
    while taken < 100 and not matcher.finished:
        ahead, draft = plain.deep_copy(), list(kind.forced(matcher, 8))
        if not draft or random.random() < 0.5:
            draft = []
            while len(draft) < random.randint(0, 6) and not ahead.is_stopped():
                draft.append(any_of(mask_of(ahead, words), vocab, random))
                assert ahead.consume_token(draft[-1])
        accepted = kind.accepted(matcher, tuple(draft))
        masks = kind.masks([matcher], [accepted])
        ahead = plain.deep_copy()
        for row, token in enumerate((*accepted, None)):
            np.testing.assert_array_equal(masks[row], mask_of(ahead, words))
            if token is None or not ahead.consume_token(token) or ahead.is_stopped():
                break
        assert matcher.drafts
        some = accepted[: random.randint(0, len(accepted))] or (any_of(masks[0], vocab, random),)
        for token in some:
            kind.advance([matcher], [token])
            assert matcher.error is None
            assert plain.consume_token(token)
            assert matcher.finished == plain.is_stopped()
            taken += 1
            if matcher.finished:
                break
