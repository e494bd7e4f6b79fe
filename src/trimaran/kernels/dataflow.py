"""Which buffers an op reads, and which ops read a buffer."""

from collections.abc import Sequence

from trimaran.kernels.program import Buffer, Op


def inputs(op: object) -> dict[str, Buffer]:
    """The buffers that an op reads, by field; also of what ops are fused to, whose result is named ``out`` too."""
    return {name: value for name, value in vars(op).items() if name != "out" and isinstance(value, Buffer)}


def readers_of(ops: Sequence[Op]) -> dict[Buffer, list[Op]]:
    """For each buffer that is read, the ops that read it."""
    readers: dict[Buffer, list[Op]] = {}
    for op in ops:
        for buffer in inputs(op).values():
            readers.setdefault(buffer, []).append(op)
    return readers
