import pytest

from trimaran.checkpoint.tensors import StorageFormat, TensorSpan


@pytest.mark.parametrize(
    ("fmt", "bits"),
    [
        ("F32", 32),
        ("F16", 16),
        ("BF16", 16),
        ("Q8_0", 8.5),
        ("Q4_0", 4.5),
        ("Q4_1", 5),
        ("Q5_0", 5.5),
        ("Q5_1", 6),
        ("Q4_K", 4.5),
        ("Q5_K", 5.5),
        ("Q6_K", 6.5625),
        ("Q2_K", 2.625),
        ("Q3_K", 3.4375),
        ("IQ4_NL", 4.5),
        ("IQ4_XS", 4.25),
        ("MXFP4", 4.25),
        ("F8_E4M3", 8),
        ("I32", 32),
    ],
)
def test_bits_per_weight(fmt: str, bits: float) -> None:
    storage = StorageFormat(fmt)
    assert storage.row_bytes(1024) * 8 / 1024 == bits
    assert storage.block_bytes * 8 / storage.block_size == bits


def test_a_span_counts_rows_over_all_but_the_last_dimension() -> None:
    span = TensorSpan("w", (2, 3, 32), StorageFormat.Q4_0, 0, 100)
    assert (span.rows, span.row_bytes, span.size, span.end) == (6, 18, 108, 208)
