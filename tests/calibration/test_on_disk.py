"""Activations on disk: the same numbers, and files that go when buffers do."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from tests.models.families import golden, write_checkpoint

from trimaran.calibration.forward import Forward
from trimaran.calibration.on_disk import OnDisk
from trimaran.calibration.weights import StreamedWeights
from trimaran.checkpoint import open_checkpoint
from trimaran.kernels.program import Buffer
from trimaran.models.registry import build_program, read_config
from trimaran.quant.logical import logical_tensors


def test_a_buffer_is_what_was_last_put_there(tmp_path: Path) -> None:
    buffers, x, y = OnDisk(tmp_path), Buffer("x", 3), Buffer("y", 2)
    buffers[x] = np.arange(6, dtype=np.float32).reshape(2, 3)
    buffers[y] = np.ones((2, 4), np.float32)[:, ::2]
    buffers[x] = np.full((1, 3), 5, np.float32)
    np.testing.assert_array_equal(buffers[x], np.full((1, 3), 5, np.float32))
    np.testing.assert_array_equal(buffers[y], np.ones((2, 2), np.float32))
    assert list(tmp_path.iterdir()) == []
    del buffers[x]
    assert list(buffers) == [y]
    with pytest.raises(KeyError):
        buffers[x]
    buffers.close()
    assert not buffers


@pytest.mark.parametrize("name", ["gemma3_text", "deepseek_v3"])
def test_a_forward_is_the_same_to_the_bit(name: str, tmp_path: Path) -> None:
    tokens = golden(name)["tokens"].tolist()
    found = []
    with open_checkpoint(write_checkpoint(name, tmp_path / name)) as checkpoint:
        cfg = read_config(checkpoint)
        program = build_program(cfg)
        weights = StreamedWeights(logical_tensors(checkpoint), checkpoint.kind, cfg, program, checkpoint.release)
        with closing(OnDisk(tmp_path)) as on_disk:
            for buffers in (None, on_disk):
                found.append(Forward(program, weights, [tokens], buffers).run(logits=True))
            assert len(on_disk) == 1
    np.testing.assert_array_equal(*found)
