"""Who asks: keys stand for tenants, each of which has limits and, if wanted, a cache of its own.

Without keys there is one tenant, anybody. What is counted here lives as long as the server and is used from its event
loop alone.
"""

import hashlib
import hmac
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trimaran.base.errors import TrimaranError
from trimaran.server.rates import Bucket

ANYBODY = "anybody"
CONCURRENCY_RETRY = 1.0  # seconds: nobody knows when one of a tenant's own requests ends


class RateLimitError(TrimaranError):
    """The tenant has as much as it may have; ``code`` says of what."""

    def __init__(self, message: str, *, code: str, retry_after: float) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after = retry_after


@dataclass(frozen=True)
class TenantLimits:
    """What one tenant may have; ``None``: as much as it likes."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None  # of prompts and answers
    concurrency: int | None = None  # requests at once


@dataclass(frozen=True)
class Key:
    """The SHA-256 of an API key, and whose it is. A tenant may have several keys; its limits are the same in all."""

    digest: bytes
    tenant: str
    limits: TenantLimits


class Tenant:
    """What one tenant has taken."""

    def __init__(
        self, name: str, limits: TenantLimits, salt: str = "", clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``salt`` goes before that of each request: prompts share cached pages only within one salt."""
        self.name = name
        self.salt = salt
        self._limits = limits
        self._clock = clock
        self._running = 0
        requests, tokens, now = limits.requests_per_minute, limits.tokens_per_minute, clock()
        self._requests = None if requests is None else Bucket(requests, now)
        self._tokens = None if tokens is None else Bucket(tokens, now)

    def twin(self) -> "Tenant":
        """The same tenant, of whom nothing has been counted."""
        return Tenant(self.name, self._limits, self.salt, self._clock)

    def enter(self) -> None:
        """Begins a request, or raises ``RateLimitError``; ``leave`` ends it."""
        limits, now = self._limits, self._clock()
        if limits.concurrency is not None and self._running >= limits.concurrency:
            raise RateLimitError(
                f"{self._running} requests are running, as many as this key may have at once",
                code="concurrency",
                retry_after=CONCURRENCY_RETRY,
            )
        if self._requests is not None and (wait := self._requests.wait(1, now)):
            raise RateLimitError(
                f"this key may send {limits.requests_per_minute} requests a minute",
                code="request_rate",
                retry_after=wait,
            )
        if self._tokens is not None and (wait := self._tokens.wait(1, now)):
            raise RateLimitError(
                f"this key may use {limits.tokens_per_minute} tokens a minute", code="token_rate", retry_after=wait
            )
        if self._requests is not None:
            self._requests.take(1, now)
        self._running += 1

    def leave(self) -> None:
        self._running -= 1

    def spend(self, tokens: int) -> None:
        """Counts tokens of a prompt or an answer. They are known late, so a tenant may owe some."""
        if self._tokens is not None:
            self._tokens.take(tokens, self._clock())


class Tenants:
    """All tenants of a server."""

    def __init__(self, keys: Sequence[Key], anybody: TenantLimits, *, own_caches: bool) -> None:
        """``anybody``: the limits of the one tenant there is without ``keys``. ``own_caches``: a salt for each."""
        known: dict[str, Tenant] = {}
        for key in keys:
            salt = _salt(key.tenant) if own_caches else ""
            known.setdefault(key.tenant, Tenant(key.tenant, key.limits, salt))
        self._keys = [(key.digest, known[key.tenant]) for key in keys]
        self._anybody = None if keys else Tenant(ANYBODY, anybody)
        everybody = known.values() if self._anybody is None else [self._anybody]
        self._apart = {tenant.name: tenant.twin() for tenant in everybody}

    def apart(self, name: str) -> Tenant | None:
        """The tenant ``name`` as whoever works for it while it does not wait: what that takes is counted apart."""
        return self._apart.get(name)

    def of(self, authorizations: Sequence[bytes]) -> Tenant | None:
        """Whose the request with these ``Authorization`` headers is; ``None``: nobody's."""
        if self._anybody is not None:
            return self._anybody
        if len(authorizations) != 1:
            return None
        scheme, _, token = authorizations[0].partition(b" ")
        digest = hashlib.sha256(token.strip()).digest()
        # Every key is compared, in constant time: how long it takes tells nothing.
        found = [tenant for known, tenant in self._keys if hmac.compare_digest(digest, known)]
        return found[0] if found and scheme.lower() == b"bearer" else None


def _salt(name: str) -> str:
    """Of one length for all tenants, so that none can make another's by what it adds."""
    return hashlib.sha256(name.encode()).hexdigest()[:32]
