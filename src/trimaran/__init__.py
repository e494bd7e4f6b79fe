"""Trimaran serves language and ranking models on hardware that its users own.

What is exported loads on first use, so that importing the package (and starting the CLI) stays quick.
"""

from typing import TYPE_CHECKING, Any

from trimaran.base.version import __version__

if TYPE_CHECKING:
    from trimaran.base.grammar import Grammar
    from trimaran.base.sampling import SamplingParams
    from trimaran.checkpoint.verify import verify_model_integrity
    from trimaran.llm import LLM

__all__ = ["LLM", "Grammar", "SamplingParams", "__version__", "verify_model_integrity"]


def __getattr__(name: str) -> Any:
    if name == "LLM":
        from trimaran.llm import LLM

        return LLM
    if name == "Grammar":
        from trimaran.base.grammar import Grammar

        return Grammar
    if name == "SamplingParams":
        from trimaran.base.sampling import SamplingParams

        return SamplingParams
    if name == "verify_model_integrity":
        from trimaran.checkpoint.verify import verify_model_integrity

        return verify_model_integrity
    raise AttributeError(f"module 'trimaran' has no attribute {name!r}")
