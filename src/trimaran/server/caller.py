"""Who asks, and how urgently: what a request says beside its body."""

from dataclasses import dataclass

from trimaran.base.messages import BACKGROUND
from trimaran.server.tenants import Tenant


@dataclass(frozen=True)
class Caller:
    """Of one request. One that is ``later`` is done in the background: it gives way to all that are not, and no
    histogram shows how long it took."""

    arrived: float  # time.perf_counter()
    tenant: Tenant
    session: str = ""  # what a router keeps requests together by
    later: bool = False

    def priority(self, asked: int = 0) -> int:
        """What the engine is told, given what the request says; smaller runs first."""
        return BACKGROUND + 2**31 + asked if self.later else asked
