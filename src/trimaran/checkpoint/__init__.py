"""Model files: readers (``open_checkpoint``) and where they come from (``checkpoint.sources``)."""

from trimaran.checkpoint.checkpoint import Checkpoint
from trimaran.checkpoint.open import open_checkpoint
from trimaran.checkpoint.tensors import CheckpointTensor, StorageFormat

__all__ = ["Checkpoint", "CheckpointTensor", "StorageFormat", "open_checkpoint"]
