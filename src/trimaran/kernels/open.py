"""Executors by name; each factory imports inside, so that an unused one costs nothing."""

from collections.abc import Callable, Mapping

from trimaran.base.errors import ConfigError
from trimaran.kernels.program import Program
from trimaran.kernels.step import Executor, ExecutorOptions
from trimaran.kernels.weights import ReadWeight, Weight

Factory = Callable[[Program, Mapping[str, Weight], ExecutorOptions, ReadWeight], Executor]


def _native(program: Program, weights: Mapping[str, Weight], options: ExecutorOptions, read: ReadWeight) -> Executor:
    from trimaran.kernels.native import NativeExecutor

    return NativeExecutor(program, weights, options, read=read)


def _reference(program: Program, weights: Mapping[str, Weight], options: ExecutorOptions, read: ReadWeight) -> Executor:
    from trimaran.kernels.reference import ReferenceExecutor

    return ReferenceExecutor(program, {name: read(name) for name in weights}, options)


def _null(program: Program, weights: Mapping[str, Weight], options: ExecutorOptions, _read: ReadWeight) -> Executor:
    from trimaran.kernels.null import NullExecutor

    return NullExecutor(program, weights, options)


EXECUTORS: dict[str, Factory] = {"native": _native, "reference": _reference, "null": _null}


def open_executor(
    name: str,
    program: Program,
    weights: Mapping[str, Weight],
    options: ExecutorOptions,
    read: ReadWeight | None = None,
) -> Executor:
    """Builds the executor called ``name``. ``read`` reads ``weights`` that are without numbers.

    Raises ``ConfigError`` on an unknown name.
    """
    if name not in EXECUTORS:
        raise ConfigError(f"unknown executor {name!r}; choose one of {', '.join(EXECUTORS)}")
    return EXECUTORS[name](program, weights, options, read or weights.__getitem__)


def checked(verify: Callable[[], None], executor: Executor) -> None:
    """Waits for the hashes of the bytes that the executor holds; frees it if they are wrong."""
    try:
        verify()
    except BaseException:
        executor.close()
        raise
