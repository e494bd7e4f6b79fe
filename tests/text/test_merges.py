from trimaran.text.merges import merges_of


def test_every_way_to_put_a_token_together_best_token_first():
    known = {"a", "b", "ab", "ba", "aba", "x"}
    assert merges_of(["a", "ab", "aba", "xy"], known) == [("a", "b"), ("a", "ba"), ("ab", "a")]
