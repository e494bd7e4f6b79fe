"""Whether a JSON Schema can be enforced, asked before a request goes to an engine that would refuse it as a whole."""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from trimaran.text.grammar_errors import feature, words
from trimaran.text.json_schema import exact_schema, passed_over


def refusal(schema: Mapping[str, Any], options: Mapping[str, Any]) -> str | None:
    """What of ``schema`` cannot be enforced with these ``options`` of llguidance's; None where all can."""
    return passed_over(schema) or _refusal(json.dumps({**exact_schema(dict(schema)), "x-guidance": dict(options)}))


@lru_cache(maxsize=1024)
def _refusal(schema: str) -> str | None:
    from llguidance import LLMatcher  # a server without tools does not need it

    why = LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(schema))
    return (feature(why) or words(why)) if why else None
