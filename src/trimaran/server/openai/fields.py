"""Fields that Trimaran knows and does not offer: accepted at the value that changes nothing, else refused by name.

Each table maps a field to the values that mean what happens anyway. Any other value is a 400 that names the field; so
is a field in no table and no schema. Nothing that a client asks for is dropped in silence.
"""

import json
from collections.abc import Mapping
from typing import Any

from pydantic_core import PydanticCustomError

from trimaran.base.env import nearest

Inert = Mapping[str, tuple[Any, ...]]

OPENAI_CHAT: Inert = {
    "audio": (None,),
    "function_call": (None, "none", "auto"),
    "functions": (None, []),
    "modalities": (None, ["text"]),
    "moderation": (None,),
    "prediction": (None,),
    "prompt_cache_options": (None, {}, {"mode": "implicit"}),
    "prompt_cache_retention": (None, "in_memory"),
    "service_tier": (None, "auto", "default"),
    "store": (None, False),
    "verbosity": (None, "medium"),
    "web_search_options": (None,),
}

RESPONSES: Inert = {
    "conversation": (None,),
    "include": (None, []),
    "max_tool_calls": (None,),
    "prompt": (None,),
    "prompt_cache_options": (None, {}, {"mode": "implicit"}),
    "prompt_cache_retention": (None, "in_memory"),
    "service_tier": (None, "auto", "default"),
    "stream_options": (None, {}),
    "top_logprobs": (None, 0),
    "truncation": (None, "disabled"),
}

OPENAI_COMPLETIONS: Inert = {"suffix": (None, "")}

STREAM_OPTIONS: Inert = {"include_obfuscation": (None, False), "continuous_usage_stats": (None, False)}

# Fields of vLLM's API, at vLLM's defaults.
VLLM: Inert = {
    "add_special_tokens": (None,),
    "allowed_token_ids": (None, []),
    "bad_words": (None, []),
    "include_stop_str_in_output": (None, False),
    "guided_decoding_backend": (None, "auto", "guidance"),
    "length_penalty": (None, 1.0),
    "logits_processors": (None, []),
    "prompt_logprobs": (None,),
    "return_token_ids": (None, False),
    "return_tokens_as_token_ids": (None, False),
    "skip_special_tokens": (None, True),
    "spaces_between_special_tokens": (None, True),
    "truncate_prompt_tokens": (None,),
    "use_beam_search": (None, False),
}
STRUCTURED_OUTPUTS: Inert = {
    "disable_additional_properties": (None, False),
    "disable_any_whitespace": (None, False, True),  # there is none unless a pattern asks for it
    "disable_fallback": (None, False, True),  # there is nothing to fall back on
}
VLLM_EMBEDDINGS: Inert = {
    "add_special_tokens": (None, True),
    "normalize": (None,),
    "priority": (None, 0),
    "request_id": (None,),
    "truncate_prompt_tokens": (None,),
}
SCORING: Inert = {  # and those of Jina's and Cohere's API
    "activation": (None,),
    "add_special_tokens": (None, True),
    "max_chunks_per_doc": (None,),
    "max_tokens_per_doc": (None,),
    "mm_processor_kwargs": (None, {}),
    "priority": (None, 0),
    "rank_fields": (None, [], ["text"]),
    "request_id": (None,),
    "softmax": (None,),
}
VLLM_CHAT: Inert = {
    "chat_template": (None,),
    "continue_final_message": (None, False),
    "documents": (None, []),
    "echo": (None, False),
}

VLLM_TOKENIZE: Inert = {
    "chat_template": (None,),
    "continue_final_message": (None, False),
    "mm_processor_kwargs": (None, {}),
}

MESSAGE: Inert = {
    "annotations": (None, []),
    "audio": (None,),
    "function_call": (None,),
    "name": (None,),  # most chat templates would drop it
    "reasoning": (None,),
    "refusal": (None,),
}

CONTENT_PART: Inert = {"prompt_cache_breakpoint": (None,)}


def without_inert(data: Mapping[str, Any], inert: Inert, known: Mapping[str, Any]) -> dict[str, Any]:
    """``data`` without the fields of ``inert`` that ask for nothing.

    Raises a pydantic error, whose context names the field, on one that asks for something and on one that is neither in
    ``inert`` nor in ``known``.
    """
    kept = {}
    for name, value in data.items():
        if name in known:
            kept[name] = value
        elif name not in inert:
            hint = nearest(name, [*known, *inert])
            raise refused("unknown_parameter", name, f"is not a field of this API{hint}")
        elif not any(_same(value, allowed) for allowed in inert[name]):
            allowed = " or ".join(map(json.dumps, inert[name]))
            raise refused("unsupported_parameter", name, f"is not supported; leave it out or send {allowed}")
    return kept


def refused(code: str, field: str, why: str) -> PydanticCustomError:
    """An error to raise inside a validator: pydantic adds where it happened, ``validation.py`` puts both together."""
    return PydanticCustomError(code, why, {"field": field})


def _same(value: Any, allowed: Any) -> bool:
    """Equality that keeps JSON's types apart: ``0`` is not ``false``."""
    return isinstance(value, bool) == isinstance(allowed, bool) and bool(value == allowed)
