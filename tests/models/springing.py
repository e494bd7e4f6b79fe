"""Ways to get a family wrong on purpose: each makes a tiny checkpoint's model anew with one mistake in it."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trimaran.base.formats import WeightFormat
from trimaran.kernels.program import Op
from trimaran.models.config import ModelConfig
from trimaran.models.registry import build_program

from .families import golden, write_checkpoint
from .running import Model, load, load_path, run

FAR = 2e-3  # what a mistake moves logits by at least; the right program may be off by 1e-4
Spring = Callable[[str], Model]  # the name of a checkpoint to the model that comes of the mistake


def nothing(name: str) -> Model:
    """The right model, loaded anew."""
    return file_read_with()(name)


@dataclass(frozen=True)
class Trap:
    """A mistake with the checkpoint ``name``; ``patch`` is an object, the name of a function of it, and a wrong one."""

    name: str
    spring: Spring = nothing
    patch: tuple[object, str, Callable[..., Any]] | None = None

    def distance(self, patcher: pytest.MonkeyPatch) -> float:
        """How far the mistake moves the logits that ``reference`` computes from the golden ones."""
        load(self.name)  # what others share is read before anything is wrong
        if self.patch is not None:
            patcher.setattr(*self.patch)
        expected = golden(self.name)
        logits = run(self.spring(self.name), "reference", expected["tokens"], (len(expected["tokens"]),))
        return float(np.abs(logits - expected["logits"]).max())


def config(**changes: Any) -> Spring:
    """The program of a configuration with other values; a value may be a function of the right configuration."""

    def spring(name: str) -> Model:
        model = load(name)
        cfg = _changed(model.cfg, changes)
        return Model(cfg, build_program(cfg), model.weights)

    return spring


def file_read_with(**changes: Any) -> Spring:
    """As ``config``, and the file's tensors are understood by the wrong configuration too."""

    def spring(name: str) -> Model:
        cfg = _changed(load(name).cfg, changes)
        with tempfile.TemporaryDirectory() as folder:
            return load_path(write_checkpoint(name, Path(folder)), WeightFormat.FP32, cfg)

    return spring


def op(kind: type[Op], change: Callable[[Any], Any]) -> Spring:
    """Every op of this kind is what ``change`` makes of it."""

    def spring(name: str) -> Model:
        model = load(name)
        ops = tuple(change(op) if isinstance(op, kind) else op for op in model.program.ops)
        return Model(model.cfg, replace(model.program, ops=ops), model.weights)

    return spring


def fields(kind: type[Op], **changes: Any) -> Spring:
    """Every op of this kind has other values in these fields."""
    return op(kind, lambda found: replace(found, **changes))


def weights(ending: str, change: Callable[[np.ndarray], np.ndarray]) -> Spring:
    """Weights whose names end in ``ending`` are what ``change`` makes of them."""

    def spring(name: str) -> Model:
        model = load(name)
        found = [key for key in model.program.weights if key.endswith(ending)]
        assert found, f"{name} has no weight {ending}"
        wrong = {key: replace(model.weights[key], data=change(model.weights[key].data.copy())) for key in found}
        return Model(model.cfg, model.program, {**model.weights, **wrong})

    return spring


def _changed(cfg: ModelConfig, changes: dict[str, Any]) -> ModelConfig:
    return replace(cfg, **{key: change(cfg) if callable(change) else change for key, change in changes.items()})
