from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from trimaran.engine.history import History

tokens = st.lists(st.integers(0, 199), max_size=300)


@settings(max_examples=100)
@given(tokens, tokens, st.floats(0.5, 2), st.floats(-2, 2), st.floats(-2, 2))
def test_penalties_equal_their_definition(prompt, output, repetition, presence, frequency):
    history = History(prompt)
    for token in output:
        history.add(token)
    scores = np.linspace(-5, 5, 200, dtype=np.float32)
    expected = scores.astype(np.float64)
    counts = Counter(output)
    for token in set(prompt) | set(output):
        expected[token] = expected[token] / repetition if expected[token] > 0 else expected[token] * repetition
        expected[token] -= presence * (counts[token] > 0) + frequency * counts[token]
    history.penalise(scores, repetition, presence, frequency)
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-4)
