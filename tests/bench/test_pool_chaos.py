"""The short form of ``python bench/pool_chaos.py``, and that it sees what must not be."""

import sys

import pytest
from tests.server.byte_model import write_byte_model

from trimaran.bench import pool_campaign, pool_faults
from trimaran.bench.faulty_link import FAULTS

if sys.platform != "linux":
    pytest.skip("reads /proc, and pages go through shared memory", allow_module_level=True)


def test_faults_on_the_way_cost_no_more_than_their_request():
    tally = pool_faults.Campaign(seed=3).run(pool_faults.TOGETHER * pool_faults.WAVES)
    assert tally.wrong == []
    assert set(tally.faults) == {*FAULTS, *pool_faults.OTHERS, *pool_faults.RESTARTS}
    assert tally.ends["right tokens of a neighbour"] >= pool_faults.NEIGHBOURS * (pool_faults.WAVES - 1)


def test_a_page_that_went_wrong_unseen_would_be_found(monkeypatch):
    campaign = pool_faults.Campaign(seed=1)
    monkeypatch.setattr(campaign, "_expected", lambda submit: [0])
    tally = campaign.run(2)
    assert "gave" in tally.wrong[0]


async def test_workers_that_are_killed_cost_no_wrong_text(tmp_path):
    model = str(write_byte_model(tmp_path))
    flags = ["--executor", "null", "--no-pool-self-test"]
    tally = await pool_campaign.Campaign(model, flags, seed=1).run(len(pool_campaign.KINDS))
    assert tally.wrong == []
    assert tally.ends["right text"] >= pool_campaign.NEIGHBOURS * 2
    assert len(tally.recoveries) == len(pool_campaign.KINDS)
