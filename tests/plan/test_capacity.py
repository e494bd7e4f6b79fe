"""Published figures come out of the arithmetic, with the assumptions that make them."""

from dataclasses import replace
from typing import Any

import pytest

from trimaran.base.errors import ConfigError
from trimaran.base.formats import KVFormat
from trimaran.models.registry import build_program
from trimaran.plan.cache import CacheRecipe, cache_bytes
from trimaran.plan.capacity import Assumptions, Plan, default_overhead, make_plan, plan_by_hand
from trimaran.plan.gpus import GIB, GPUS, Gpu, find_gpu
from trimaran.plan.weights import WeightRecipe, weight_bytes

from .configs import DEEPSEEK_V32, GEMMA_3_27B, GLM_52, KIMI_K2, LLAMA_31_8B, config

H200 = GPUS["h200"]


def plan(values: dict[str, Any], weights: WeightRecipe, cache: CacheRecipe, **others: Any) -> Plan:
    cfg = config(values)
    asked = Assumptions(H200, 8, weights, cache, context=131072, overhead=default_overhead(H200))
    return make_plan(cfg, build_program(cfg), replace(asked, **others))


def token_bytes(values: dict[str, Any], recipe: CacheRecipe, gpus: int = 1) -> float:
    return cache_bytes(build_program(config(values)).groups, recipe, gpus).growing


@pytest.mark.parametrize(
    ("values", "bf16", "fp8", "int4"),
    [
        (LLAMA_31_8B, 131_072, 65_536, 36_864),
        (GEMMA_3_27B, 81_920, 40_960, 23_040),  # its full layers
        (KIMI_K2, 70_272, 35_136, 27_328),
        (DEEPSEEK_V32, 78_324, 43_188, 35_380),
        (GLM_52, 92_628, 47_700, 37_716),  # index keys in 21 of 78 layers
    ],
)
def test_bytes_of_a_token(values: dict[str, Any], bf16: int, fp8: int, int4: int) -> None:
    assert token_bytes(values, CacheRecipe.BF16) == bf16
    assert token_bytes(values, CacheRecipe.FP8) == fp8
    assert token_bytes(values, CacheRecipe.INT4) == int4


@pytest.mark.parametrize("values", [KIMI_K2, DEEPSEEK_V32, GLM_52])
def test_latents_take_what_pages_of_ours_do(values: dict[str, Any]) -> None:
    """But for fp8, whose scales are static here."""
    (group,) = build_program(config(values)).groups
    for recipe in set(CacheRecipe) - {CacheRecipe.FP8}:
        assert token_bytes(values, recipe) == group.page_bytes(KVFormat(recipe.value), 1), recipe
    fp8 = group.page_bytes(KVFormat.FP8, 1)
    assert fp8 - token_bytes(values, CacheRecipe.FP8) == 8 * config(values).layers


@pytest.mark.parametrize(("values", "size"), [(LLAMA_31_8B, 52_224), (KIMI_K2, 23_668), (GLM_52, 33_036)])
def test_keys_and_values_may_differ(values: dict[str, Any], size: int) -> None:
    assert token_bytes(values, CacheRecipe.INT8_INT4) == size


def test_heads_are_shared_out_and_latents_are_not() -> None:
    assert token_bytes(LLAMA_31_8B, CacheRecipe.BF16, 4) == 131_072 / 4
    assert token_bytes(LLAMA_31_8B, CacheRecipe.BF16, 16) == 131_072 / 8  # a head at least
    assert token_bytes(LLAMA_31_8B, CacheRecipe.BF16, 6) == 131_072 / 4  # and whole heads
    assert token_bytes(GLM_52, CacheRecipe.BF16, 8) == 92_628


def test_layers_with_a_window_stop_growing() -> None:
    cache = cache_bytes(build_program(config(GEMMA_3_27B)).groups, CacheRecipe.BF16, 1)
    assert cache.windowed == ((1024, 507_904 - 81_920),)
    assert cache.of_sequence(8192) - cache.of_sequence(4096) == 4096 * 81_920
    assert cache.of_sequence(1024) == 1024 * 507_904


def test_kimi_k26_on_eight_h200() -> None:
    """686 k tokens with a bf16 cache and 1.37 M with fp8, beside its own INT4 experts."""
    bf16 = plan(KIMI_K2, WeightRecipe.INT4, CacheRecipe.BF16)
    fp8 = plan(KIMI_K2, WeightRecipe.INT4, CacheRecipe.FP8)
    assert bf16.weights.total / GIB == pytest.approx(553.4, rel=0.005)  # without the vision tower
    assert bf16.weights.per_gpu / GIB == pytest.approx(71, rel=0.01)
    assert bf16.tokens == pytest.approx(686_000, rel=0.02)
    assert fp8.tokens == pytest.approx(1_370_000, rel=0.02)


def test_glm_52_in_fp8_and_int4() -> None:
    """705 to 421 GiB, 88 to 52 on each of eight GPUs, and 1.18 M tokens where every layer has index keys."""
    fp8 = plan(GLM_52, WeightRecipe.FP8, CacheRecipe.FP8)
    int4 = plan(GLM_52, WeightRecipe.INT4, CacheRecipe.FP8, index_everywhere=True)
    assert fp8.weights.total / GIB == pytest.approx(705, rel=0.005)
    assert int4.weights.total / GIB == pytest.approx(421, rel=0.005)
    assert fp8.weights.total / 8 / GIB == pytest.approx(88, rel=0.01)
    assert int4.weights.total / 8 / GIB == pytest.approx(52.5, rel=0.01)
    assert fp8.weights.per_gpu / GIB == pytest.approx(89.5, rel=0.01)  # what every GPU holds whole is not cut
    assert int4.tokens == pytest.approx(1_180_000, rel=0.02)
    assert plan(GLM_52, WeightRecipe.INT4, CacheRecipe.FP8).tokens > 1.15 * int4.tokens


def test_glm_52_bf16_is_the_size_of_its_index_file() -> None:
    cfg = config(GLM_52)
    found = weight_bytes(cfg, build_program(cfg), WeightRecipe.BF16, 1, mtp=True)
    assert found.total == pytest.approx(1_506_659_919_872, rel=1e-5)


def test_the_least_number_of_gpus() -> None:
    assert plan(KIMI_K2, WeightRecipe.INT4, CacheRecipe.FP8).least_gpus == 8
    assert plan(LLAMA_31_8B, WeightRecipe.BF16, CacheRecipe.BF16, count=1).least_gpus == 1
    assert plan(GLM_52, WeightRecipe.BF16, CacheRecipe.BF16, gpu=Gpu("tiny", GIB), overhead=0).least_gpus is None


def test_weights_that_do_not_fit_leave_nothing() -> None:
    made = plan(GLM_52, WeightRecipe.BF16, CacheRecipe.FP8)
    assert made.pool < 0
    assert (made.tokens, made.sequences, made.least_gpus) == (0, 0, 16)


def test_sizes_given_by_hand() -> None:
    asked = Assumptions(Gpu("gpu", 80 * 10**9), 1, WeightRecipe.BF16, CacheRecipe.BF16, 32_768, 0.95, 2 * 10**9)
    made = plan_by_hand(61 * 10**9, 36_000, asked)
    assert made.pool == pytest.approx(13e9)
    assert made.tokens == 13 * 10**9 // 36_000
    assert made.sequences == 11


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": 0}, "count must be at least 1"),
        ({"count": 3}, "64 heads do not divide among 3 GPUs"),
        ({"gpu": Gpu("gpu", 80)}, "a GPU of 80 bytes: write its memory with a unit"),
        ({"context": 2**21}, "exceeds the 1048576 tokens"),
        ({"utilization": 1.5}, "utilization must lie"),
        ({"overhead": -1}, "overhead must not be negative"),
    ],
)
def test_impossible_assumptions(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(GLM_52, WeightRecipe.FP8, CacheRecipe.FP8, **change)


def test_gpus_by_name() -> None:
    assert find_gpu("H200") is H200
    with pytest.raises(ConfigError, match=r"no GPU 'h20' is known.*did you mean h200"):
        find_gpu("h20")
