"""What a download leaves in its folder."""

from pathlib import Path


def left(target: Path) -> list[str]:
    """Names of all files beside ``target``, and its own if it is there."""
    return sorted(file.name for file in target.parent.iterdir())
