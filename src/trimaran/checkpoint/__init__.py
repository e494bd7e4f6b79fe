"""Model files: readers (``open_checkpoint``) and where they come from (``checkpoint.sources``).

What is exported loads on first use: who only looks a model up needs no readers, nor NumPy.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trimaran.checkpoint.checkpoint import Checkpoint
    from trimaran.checkpoint.open import open_checkpoint
    from trimaran.checkpoint.tensors import CheckpointTensor, StorageFormat

__all__ = ["Checkpoint", "CheckpointTensor", "StorageFormat", "open_checkpoint"]


def __getattr__(name: str) -> Any:
    if name == "Checkpoint":
        from trimaran.checkpoint.checkpoint import Checkpoint

        return Checkpoint
    if name == "open_checkpoint":
        from trimaran.checkpoint.open import open_checkpoint

        return open_checkpoint
    if name in ("CheckpointTensor", "StorageFormat"):
        from trimaran.checkpoint import tensors

        return getattr(tensors, name)
    raise AttributeError(f"module 'trimaran.checkpoint' has no attribute {name!r}")
