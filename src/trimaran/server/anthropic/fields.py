"""Fields of the Messages API that are not offered: accepted at the value that changes nothing, else refused by name."""

from trimaran.server.openai.fields import Inert

CACHED = (None, {"type": "ephemeral"})  # every prompt is cached, whether asked for or not

REQUEST: Inert = {
    "cache_control": CACHED,
    "container": (None,),
    "context_management": (None,),
    "diagnostics": (None,),
    "inference_geo": (None,),
    "mcp_servers": (None, []),
    "service_tier": (None, "auto", "standard_only"),
    "speed": (None, "standard"),
    "user_profile_id": (None,),
    "workspace_id": (None,),
}
BLOCK: Inert = {"cache_control": CACHED, "citations": (None, [])}
TOOL: Inert = {
    "cache_control": CACHED,
    "allowed_callers": (None, ["direct"]),
    "defer_loading": (None, False),
    "eager_input_streaming": (None, False, True),
    "input_examples": (None, []),
}
OUTPUT: Inert = {"effort": (None,)}
CALL: Inert = {**BLOCK, "caller": (None, {"type": "direct"}), "toolset_name": (None,)}
