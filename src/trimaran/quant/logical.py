"""A checkpoint's tensors as the model means them: a matrix that is stored as several tensors is one.

What is quantised, and how, is decided by the tensors that are there; ``quant/method.py`` says what they leave open.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from trimaran.base.errors import UnsupportedError
from trimaran.checkpoint.tensors import CheckpointTensor, StorageFormat
from trimaran.quant import packed, qweight, scaled, squeezed
from trimaran.quant.method import Method, read_method
from trimaran.quant.parts import Parts
from trimaran.quant.stored import Stored, plain


class TensorSource(Protocol):
    """What is needed of a ``Checkpoint``."""

    @property
    def kind(self) -> str: ...

    @property
    def metadata(self) -> Mapping[str, Any]: ...

    def tensors(self) -> Iterator[CheckpointTensor]: ...


@dataclass(frozen=True)
class LogicalTensor:
    """A tensor by the name it has where it is stored plainly. Finding it reads nothing of it; ``open`` reads scales.

    ``open`` raises ``CheckpointError`` when its tensors contradict each other, ``UnsupportedError`` when they are of a
    kind that is not read.
    """

    name: str
    open: Callable[[], Stored]


def logical_tensors(checkpoint: TensorSource) -> list[LogicalTensor]:
    """All tensors, in file order of the first part of each.

    Raises ``UnsupportedError`` when the configuration names a quantisation that is not read.
    """
    if checkpoint.kind == "gguf":
        return [_plain(tensor) for tensor in checkpoint.tensors()]
    method = read_method(checkpoint.metadata)
    modules: dict[str, dict[str, CheckpointTensor]] = {}
    for tensor in checkpoint.tensors():
        module, _, leaf = tensor.name.rpartition(".")
        modules.setdefault(module, {})[leaf] = tensor
    return [logical for module, leaves in modules.items() for logical in _of_module(module, leaves, method)]


def _of_module(module: str, leaves: dict[str, CheckpointTensor], method: Method) -> Iterator[LogicalTensor]:
    kind = _kind(leaves)
    if kind is not None:
        parts = Parts(module, {leaf: leaves[leaf] for leaf in leaves if leaf in kind.leaves})
        yield LogicalTensor(parts.name, lambda: kind.read(parts, method))
    taken = frozenset[str]() if kind is None else kind.leaves
    yield from (_plain(tensor) for leaf, tensor in leaves.items() if leaf not in taken)


def _plain(tensor: CheckpointTensor) -> LogicalTensor:
    return LogicalTensor(tensor.name, lambda: plain(tensor))


@dataclass(frozen=True)
class _Kind:
    leaves: frozenset[str]
    read: Callable[[Parts, Method], Stored]


_PACKED = _Kind(packed.LEAVES, lambda parts, _: packed.read_packed(parts))
_SQUEEZED = _Kind(squeezed.LEAVES, lambda parts, _: squeezed.read_squeezed(parts))
_QWEIGHT = _Kind(qweight.LEAVES, qweight.read_qweight)
_FP8 = _Kind(scaled.LEAVES, scaled.read_fp8)
_INT8 = _Kind(scaled.LEAVES, lambda parts, _: scaled.read_int8(parts))


def _kind(leaves: Mapping[str, CheckpointTensor]) -> _Kind | None:
    """How the module's matrix is stored, or ``None`` where every tensor stands for itself."""
    codes = leaves.get("weight_packed", leaves.get("weight"))
    if "weight_global_scale" in leaves or "weight_scale_2" in leaves:
        return _refused("NVFP4")
    if codes is not None and codes.fmt is StorageFormat.U8:
        return _refused("MXFP4, or another kind with two weights a byte")
    if "weight_packed" in leaves:
        return _PACKED
    if "weight_codes" in leaves:
        return _SQUEEZED
    if "qweight" in leaves:
        return _QWEIGHT
    if codes is None:
        return None
    return _FP8 if codes.fmt in scaled.FLOAT8 else _INT8 if codes.fmt is StorageFormat.I8 else None


def _refused(method: str) -> _Kind:
    def read(parts: Parts, _: Method) -> Stored:
        raise UnsupportedError(f"{parts.name} is quantised by {method}, which is not read")

    return _Kind(packed.LEAVES | scaled.LEAVES | {"weight_global_scale", "weight_scale_2"}, read)
