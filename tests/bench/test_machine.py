import pytest

from trimaran import _probe
from trimaran.bench.machine import ForeignLoad, Machine, cpu_name, usable_cores


def test_bounds_are_positive_and_measured_once(monkeypatch):
    machine = Machine(threads=1)
    first = machine.bandwidth(1 << 20), machine.peak(int8=True), machine.peak(int8=False)
    assert min(first) > 1e8

    def fail(*_):
        raise AssertionError("measured twice")

    monkeypatch.setattr(_probe, "read_seconds", fail)
    monkeypatch.setattr(_probe, "multiply_rate", fail)
    assert (machine.bandwidth((1 << 20) + 1), machine.peak(int8=True), machine.peak(int8=False)) == first


def test_footprints_of_other_sizes_are_measured_anew(monkeypatch):
    sizes = []
    monkeypatch.setattr(_probe, "read_seconds", lambda size, *_: sizes.append(size) or [1.0])
    machine = Machine(threads=1)
    for footprint in (92 << 20, 93 << 20, 120 << 20):
        machine.bandwidth(footprint)
    assert len(sizes) == 2
    assert all(0.9 * wanted < size <= wanted for size, wanted in zip(sizes, (92 << 20, 120 << 20), strict=True))


def test_measuring_again_keeps_the_better_figure(monkeypatch):
    machine = Machine(threads=1)
    seconds, rates = iter([[2.0], [1.0], [4.0]]), iter([[5.0], [3.0], [6.0]])
    monkeypatch.setattr(_probe, "read_seconds", lambda *_: next(seconds))
    monkeypatch.setattr(_probe, "multiply_rate", lambda *_: next(rates))
    seen = []
    for _ in range(3):
        seen.append((machine.bandwidth(1 << 20), machine.peak(int8=True)))
        if len(seen) < 3:
            machine.measure_again()
    assert seen == [(2**19, 5.0), (2**20, 5.0), (2**20, 6.0)]


@pytest.mark.parametrize(("threads", "passes"), [(0, 1), (1, 0), (1000, 1)])
def test_the_probe_refuses_nonsense(threads, passes):
    with pytest.raises(ValueError, match="threads must be"):
        _probe.read_seconds(1 << 20, threads, passes)


def test_foreign_load_leaves_out_this_process():
    with ForeignLoad() as foreign:
        sum(range(2_000_000))
    assert 0 <= foreign.cores <= 4 * usable_cores() + 64


def test_the_machine_has_a_name():
    assert cpu_name()
    assert Machine(threads=1).describe()["isa"] == _probe.isa()
