"""Whether the disk has room for what is about to come."""

import shutil
from pathlib import Path

from trimaran.base.errors import SourceError
from trimaran.checkpoint.progress import megabytes

DISK_RESERVE = 64 << 20  # bytes of the file system that a download leaves free


def demand_space(directory: Path, size: int) -> None:
    """Raises ``SourceError`` when the disk cannot take ``size`` more bytes."""
    free = shutil.disk_usage(directory).free - DISK_RESERVE
    if size > free:
        raise SourceError(
            f"{directory} has room for {megabytes(max(0, free))}, but {megabytes(size)} are needed; "
            "free some space or set TRIMARAN_HOME to a larger disk"
        )
