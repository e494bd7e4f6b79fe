import pytest

from trimaran import _probe
from trimaran.base.processor import cpu_name
from trimaran.bench.machine import ForeignLoad, Machine, usable_cores


@pytest.mark.parametrize(("threads", "passes"), [(0, 1), (1, 0), (1000, 1)])
def test_the_probe_refuses_nonsense(threads, passes):
    for measure in (
        lambda: _probe.read_seconds(1 << 20, threads, passes),
        lambda: _probe.multiply_rate(True, threads, passes),
        lambda: _probe.team_seconds(threads, 1, passes),
    ):
        with pytest.raises(ValueError, match="threads must be"):
            measure()


def test_foreign_load_leaves_out_this_process():
    with ForeignLoad() as foreign:
        sum(range(2_000_000))
    assert 0 <= foreign.cores <= 4 * usable_cores() + 64


def test_the_machine_has_a_name():
    assert cpu_name()
    assert Machine(threads=1).describe()["isa"] == _probe.isa()
