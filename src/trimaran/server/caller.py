"""Who asks, and how urgently: what a request says beside its body."""

from dataclasses import dataclass

from trimaran.server.tenants import Tenant

LATER = 2**32  # added to a request's priority: beyond all that a request may name


@dataclass(frozen=True)
class Caller:
    """Of one request. One that is ``later`` gives way to all that are not, and no histogram shows how long it took."""

    arrived: float  # time.perf_counter()
    tenant: Tenant
    session: str = ""  # what a router keeps requests together by
    later: bool = False

    def priority(self, asked: int = 0) -> int:
        """What the engine is told, given what the request says; smaller runs first."""
        return asked + LATER if self.later else asked
