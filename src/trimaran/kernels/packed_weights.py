"""Weights that have been packed for the CPU executor: their memory, and what is known of them without their numbers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

import msgspec
import numpy as np

from trimaran.base.formats import WeightFormat
from trimaran.kernels.step import UInt8
from trimaran.kernels.weights import NO_NUMBERS, Outliers, Weight


@dataclass(frozen=True)
class Packed:
    """Packed weights of one program, in one format, for one instruction set. ``memory`` is read only.

    ``outlier_rows``: of each matrix that has outliers, the rows that they take in all strips.
    """

    memory: UInt8
    outlier_rows: Mapping[str, int] = field(default_factory=dict)


class WeightShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A weight without its numbers. ``same``: another name of the same weight, which comes first."""

    fmt: WeightFormat
    shape: tuple[int, ...]
    outliers: int | None = None
    same: str | None = None


def shapes_of(weights: Mapping[str, Weight]) -> dict[str, WeightShape]:
    """What ``weights`` are without their numbers, in their order."""
    first: dict[int, str] = {}
    return {
        name: WeightShape(
            weight.fmt,
            weight.shape,
            None if weight.outliers is None else len(weight.outliers.values),
            None if first.setdefault(id(weight), name) == name else first[id(weight)],
        )
        for name, weight in weights.items()
    }


def without_numbers(shapes: Mapping[str, WeightShape]) -> dict[str, Weight]:
    """Weights that say their format and size, and take no memory: they have no numbers, and outliers of one number.

    Raises ``KeyError`` where a shape names a weight that does not come first.
    """
    weights: dict[str, Weight] = {}
    for name, known in shapes.items():
        if known.same is not None:
            weights[name] = weights[known.same]
            continue
        outliers = None
        if known.outliers is not None:
            rows = prod(known.shape[:-1])
            outliers = Outliers(
                np.broadcast_to(np.int32(0), (rows + 1,)),
                np.broadcast_to(np.int32(0), (known.outliers,)),
                np.broadcast_to(np.float16(0), (known.outliers,)),
            )
        weights[name] = Weight(name, known.fmt, known.shape, NO_NUMBERS, outliers=outliers)
    return weights
