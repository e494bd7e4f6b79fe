from trimaran.engine.memory import available_memory


def test_the_machine_has_memory():
    assert 2**20 < available_memory() < 2**50
