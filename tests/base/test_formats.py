"""What pages take, by format."""

import pytest

from trimaran.base.errors import ConfigError
from trimaran.base.formats import LATENT_FORMATS, KVFormat, LatentCache, hadamard_width


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize(
    ("fmt", "ratio"),
    [("fp8", 1.85), ("int8", 1.85), ("int4", 3.4), ("int8/int4", 2.3), ("fp8-static", 2), ("int8-static", 2)],
)
def test_how_many_more_tokens_fit_than_in_bf16(fmt: str, ratio: float, head_dim: int) -> None:
    assert KVFormat.BF16.token_bytes(head_dim) / KVFormat(fmt).token_bytes(head_dim) >= ratio


def test_a_pair_takes_half_of_either() -> None:
    assert (KVFormat.INT8_INT4.keys, KVFormat.INT8_INT4.values) == (KVFormat.INT8, KVFormat.INT4)
    assert (KVFormat.FP8.keys, KVFormat.FP8.values) == (KVFormat.FP8, KVFormat.FP8)
    assert KVFormat.INT8_INT4.token_bytes(64) == 64 + 4 + 32 + 2
    assert KVFormat.INT4.token_bytes(64) == 32 + 8 + 32 + 2


@pytest.mark.parametrize(
    ("dims", "scales", "together"), [(64, 1, 32), (128, 1, 32), (144, 3, 16), (192, 3, 64), (256, 4, 128), (576, 9, 64)]
)
def test_wide_heads_have_more_scales_in_int4_values_and_mix_more_dimensions_in_8_bits(
    dims: int, scales: int, together: int
) -> None:
    codes = -(-dims // 32) * 16
    assert KVFormat.INT4.value_bytes(dims) == codes + 2 * scales
    terms = -(-dims // 32) * 4 + (4 if dims > 128 else 0)  # of wide heads in 8 bits for every 16, and their units
    assert KVFormat.INT4.key_bytes(dims) == codes + terms
    assert hadamard_width(KVFormat.INT8, dims) == hadamard_width(KVFormat.INT8_STATIC, dims) == together
    assert hadamard_width(KVFormat.INT4, dims) == min(32, together)


@pytest.mark.parametrize(
    ("fmt", "size", "ratio"),
    [
        ("bf16", 2 * 512 + 2 * 64, 1.0),
        ("fp8", 512 + 4 + 64 + 4, 1.97),
        ("int8", 512 + 4 + 64 + 4, 1.97),
        ("int4", 256 + 64 + 2 * 64, 2.57),  # 16 groups with a scale and a minimum; the key part in bf16
        ("int8/int4", 256 + 64 + 64 + 4, 2.96),
    ],
)
def test_what_a_latent_takes(fmt: str, size: int, ratio: float) -> None:
    cache = LatentCache(1, 512, 64)
    assert cache.token_bytes(KVFormat(fmt)) == size
    assert cache.token_bytes(KVFormat.BF16) / size >= ratio


def test_latents_refuse_what_they_cannot_be_held_in() -> None:
    cache = LatentCache(1, 512, 64)
    for fmt in KVFormat:
        if fmt in LATENT_FORMATS:
            assert cache.token_bytes(fmt) > 0
        else:
            with pytest.raises(ConfigError, match=f"{fmt} pages cannot hold the latents .* fp32, bf16, fp8, int8"):
                cache.token_bytes(fmt)
