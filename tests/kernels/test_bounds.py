import pytest

from trimaran import _probe
from trimaran.kernels.bounds import Bounds


def test_bounds_are_positive_and_measured_once(monkeypatch):
    bounds = Bounds(threads=1)
    first = bounds.bandwidth(1 << 20), bounds.peak(int8=True), bounds.peak(int8=False)
    assert min(first) > 1e8

    def fail(*_):
        raise AssertionError("measured twice")

    monkeypatch.setattr(_probe, "read_seconds", fail)
    monkeypatch.setattr(_probe, "multiply_rate", fail)
    assert (bounds.bandwidth((1 << 20) + 1), bounds.peak(int8=True), bounds.peak(int8=False)) == first


def test_footprints_of_other_sizes_are_measured_anew(monkeypatch):
    sizes = []
    monkeypatch.setattr(_probe, "read_seconds", lambda size, *_: sizes.append(size) or [1.0])
    bounds = Bounds(threads=1)
    for footprint in (92 << 20, 93 << 20, 120 << 20):
        bounds.bandwidth(footprint)
    assert len(sizes) == 2
    assert all(0.9 * wanted < size <= wanted for size, wanted in zip(sizes, (92 << 20, 120 << 20), strict=True))


def test_renewed_bandwidth_is_of_its_moment_and_peaks_are_the_best_ever(monkeypatch):
    bounds = Bounds(threads=1)
    seconds, rates = iter([[2.0], [1.0], [4.0]]), iter([[5.0], [3.0], [6.0]])
    monkeypatch.setattr(_probe, "read_seconds", lambda *_: next(seconds))
    monkeypatch.setattr(_probe, "multiply_rate", lambda *_: next(rates))
    seen = []
    for _ in range(3):
        seen.append((bounds.bandwidth(1 << 20), bounds.peak(int8=True)))
        if len(seen) < 3:
            bounds.renew()
    assert seen == [(2**19, 5.0), (2**20, 5.0), (2**18, 6.0)]


def test_the_floor_is_the_scarcer_of_bytes_and_operations(monkeypatch):
    monkeypatch.setattr(_probe, "read_seconds", lambda size, *_: [size / 100.0])
    monkeypatch.setattr(_probe, "multiply_rate", lambda int8, *_: [40.0 if int8 else 10.0])
    bounds = Bounds(threads=1)
    assert bounds.seconds(2000, 40, 10) == pytest.approx(20.0)
    assert bounds.seconds(0, 80, 30) == pytest.approx(5.0)
    assert bounds.seconds(0, 0, 0) == 0.0


def test_a_part_is_read_as_fast_as_the_whole(monkeypatch):
    monkeypatch.setattr(_probe, "read_seconds", lambda size, *_: [size / (100.0 if size < 8 << 20 else 50.0)])
    bounds = Bounds(threads=1)
    assert bounds.seconds(1 << 20, 0, 0) == (1 << 20) / 100
    assert bounds.seconds(1 << 20, 0, 0, footprint=64 << 20) == (1 << 20) / 50
