"""What llguidance says of a grammar that it does not take, in words for whoever wrote the grammar."""

import re

_FEATURES = (  # what llguidance says; what the grammar uses then, with the groups of that; what to do
    (r"Unimplemented keys: \[(.*)\]", "{0}", ""),
    (r"oneOf constraints are not supported", '"oneOf" of schemas that may hold at once', 'say "anyOf"'),
    (r"NoExtensionBias", 'a rule or "$ref" that leads to nothing but itself', "give it an end"),
    (r"recursion limit exceeded", "more levels of nesting than are read", "nest less"),
    (r"Pointer '(.*)' does not exist", "\"$ref\" to '{0}'", "there is nothing"),
    (r"Resource '(.*)' is not present", "\"$ref\" to '{0}'", 'put what it names into "$defs"'),
)
_LIMITS = (  # that are met while an answer is written
    (r"ff_tokens", "it would have to go on without an end"),
    (r"Too many items|row has \d+ items", "it might go on in too many ways"),
)
_PLACE = re.compile(r"^at \d+\(\d+\): (failed to compile JSON schema: )?")


def feature(said: str) -> str | None:
    """What a grammar uses that cannot be enforced, where ``said`` tells."""
    found = _found(said)
    return None if found is None else found[0]


def refusal(said: str, *, places: bool = True) -> str:
    """What to say after the grammar's name. ``places``: those in ``said`` are in a text that the client wrote."""
    if (found := _found(said)) is not None:
        what, advice = found
        return f"uses {what}, which cannot be enforced" + (f"; {advice}" if advice else "")
    return f"cannot be enforced: {words(said if places else _PLACE.sub('', said))}"


def end(said: str) -> str:
    """Why an answer cannot go on that belonged to its grammar until now."""
    return next((why for pattern, why in _LIMITS if re.search(pattern, said)), words(said))


def words(said: str) -> str:
    """The first line and, where a parser points at a place, the reason after it."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    reasons = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    first = lines[0][:300] if lines else "no reason given"
    return " ".join([first, *reasons[:1]]) if first.endswith(":") else "; ".join([first, *reasons[:1]])


def _found(said: str) -> tuple[str, str] | None:
    for pattern, what, advice in _FEATURES:
        if match := re.search(pattern, said):
            return what.format(*match.groups()), advice
    return None
