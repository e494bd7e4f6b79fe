"""Any order of requests, leases, faults and steps: pool, tags, owners and leases of a live engine against a model of
who was touched, and tokens against those of a request that runs alone.

The model (``bench/fault_campaign.py``) knows which entries of which sequences a fault has touched. A sequence that
goes on although it has used one, a token that is not its own, an end for nothing, a copy of a transfer that gets
through, a page that is lost: each is an error. ``test_leases.py`` has the machine of pool and leases alone.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from trimaran.bench.fault_campaign import TRANSFER_FAULTS, Campaign, lone_tokens
from trimaran.bench.faults import INJECTORS
from trimaran.kernels.null import NullModel

from .driving import null_engine

MODEL = NullModel(windows=(None, 48), context=256)
VOCAB = 512


LONE = lone_tokens(null_engine(null=MODEL))  # for all runs: it remembers


class LiveEngine(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 2**16), few=st.booleans())
    def start(self, seed: int, few: bool) -> None:
        """Few pages make sequences give way to each other; each fault costs some for good."""
        self.engine = null_engine(
            overlap=False, null=MODEL, pages=60 if few else 400, max_num_batched_tokens=64, max_num_seqs=6
        )
        self.campaign = Campaign(self.engine, LONE, VOCAB, seed=seed)
        self.faults, self.most_faults = 0, 3 if few else 15

    @rule(count=st.integers(1, 4))
    def submit(self, count: int) -> None:
        for _ in range(count):
            if len(self.engine.sequences) < 8:
                self.campaign.submit()

    @rule()
    def leave(self) -> None:
        self.campaign.leave()

    @rule(steps=st.integers(1, 5))
    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.campaign.transfer()
            self.campaign.step()

    @precondition(lambda self: self.engine.sequences and self.faults < self.most_faults)
    @rule(kind=st.sampled_from([*INJECTORS, *TRANSFER_FAULTS]))
    def inject(self, kind: str) -> None:
        self.campaign.inject(kind)
        self.faults = self.campaign.tally.injected.total()

    @invariant()
    def nothing_was_missed(self) -> None:
        assert self.campaign.tally.clean, self.campaign.tally

    @invariant()
    def books_are_whole_where_nothing_was_broken(self) -> None:
        if not self.faults:
            self.engine.cache.check()
            assert self.engine.stats().page_faults == 0

    def teardown(self) -> None:
        if hasattr(self, "campaign"):
            self.campaign.end()
            assert self.campaign.tally.clean, self.campaign.tally


TestLiveEngine = LiveEngine.TestCase
TestLiveEngine.settings = settings(max_examples=60, stateful_step_count=40)
