"""When a model's files are held against its manifest."""

from enum import StrEnum


class Verification(StrEnum):
    """When a model is verified while loading: if it has a manifest, always (it is refused without one), never."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"
