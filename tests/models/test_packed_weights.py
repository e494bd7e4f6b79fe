"""Every family computes the same bits with packed weights as with those it packs: experts, latents, tied tables."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from trimaran.base.formats import ActivationFormat, KVFormat, WeightFormat
from trimaran.kernels.native import NativeExecutor
from trimaran.kernels.packed_weights import Packed, shapes_of, without_numbers
from trimaran.models.config import ModelConfig

from .families import NAMES, golden
from .running import ORACLE, Tables, load, step

OPTIONS = replace(ORACLE, kv_format=KVFormat.BF16, activations=ActivationFormat.INT8)


@pytest.mark.parametrize("name", NAMES)
def test_same_bits(name: str) -> None:
    model, tokens = load(name, WeightFormat.INT8), golden(name)["tokens"]
    packing = NativeExecutor(model.program, model.weights, OPTIONS)
    kept = Packed(packing.packed.memory.copy(), packing.packed.outlier_rows)
    taking = NativeExecutor(model.program, without_numbers(shapes_of(model.weights)), OPTIONS, kept)
    found = []
    for executor in (packing, taking):
        pages = Tables(model.program, np.random.default_rng(7))
        found.append(step(executor, pages, [(2, tokens, 0, len(tokens))]))
        executor.close()
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("name", NAMES)
def test_a_configuration_survives_being_noted_beside_them(name: str) -> None:
    cfg = load(name, WeightFormat.INT8).cfg
    assert msgspec.json.decode(msgspec.json.encode(cfg), type=ModelConfig) == cfg
