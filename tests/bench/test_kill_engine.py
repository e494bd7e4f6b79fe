import sys

import pytest

from trimaran.bench import kill_campaign
from trimaran.bench.fuzz.model_samples import write_folder
from trimaran.bench.kill_campaign import kill_engines

FLAGS = ["--executor", "null", "--max-model-len", "2048"]


@pytest.fixture
def tiny(tmp_path):
    return str(write_folder(tmp_path))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_an_engine_that_is_killed_leaves_nothing_behind(tiny):
    """The short form of ``python bench/kill_engine.py``."""
    campaign = await kill_engines(tiny, kills=1, streams=8, seed=0, flags=FLAGS)
    assert campaign.failures == []
    assert campaign.kills == len(campaign.recoveries) == 1
    assert campaign.streams["engine_unavailable in the stream"]
    assert campaign.streams["completed"]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_what_is_left_behind_is_seen(tiny, monkeypatch, tmp_path):
    monkeypatch.setattr(kill_campaign, "SHARED_MEMORY", tmp_path)

    async def kill(*_):
        (tmp_path / "trimaran-left").touch()

    monkeypatch.setattr(kill_campaign, "_kill", kill)
    campaign = await kill_engines(tiny, kills=1, streams=2, seed=0, flags=FLAGS)
    [failure] = campaign.failures
    assert "trimaran-left" in failure
