"""What the engine of a worker process does beside running steps: nothing, or its part in handing prompts over."""

import secrets
from typing import TYPE_CHECKING, Protocol

from trimaran.base.errors import ConfigError, UnsupportedError
from trimaran.base.messages import Admit, Beat, FromEngine, Prefill
from trimaran.engine.config import PoolConfig
from trimaran.engine.decoding import DecodeEngine
from trimaran.engine.engine import Engine
from trimaran.engine.prefilling import PrefillEngine

if TYPE_CHECKING:
    from trimaran.pools.hello import Hello
    from trimaran.pools.hello import Role as Side

EPOCH_BITS = 62


class EngineRole(Protocol):
    """A worker calls everything here between two steps."""

    def take(self, message: Admit | Prefill) -> None:
        """Begins what the message asks for; raises a ``TrimaranError`` when that cannot be."""
        ...

    def cancel(self, request_id: str) -> None:
        """Ends a request of any kind; unknown ids are ignored."""
        ...

    def distrust(self, source: str) -> None:
        """What the worker called ``source`` has computed may be wrong."""
        ...

    def turn(self) -> list[FromEngine]:
        """Does what can be done without waiting; what is to be said of it."""
        ...

    @property
    def pressing(self) -> bool:
        """Whether the next ``turn`` has something to do whatever happens."""
        ...

    def filenos(self) -> list[int]:
        """What becomes readable when the next ``turn`` has something to do."""
        ...

    def told(self, beat: Beat) -> Beat:
        """The engine's counters with those of the role."""
        ...

    def close(self) -> None:
        """Ends all links."""
        ...


class Alone:
    """The role of an engine that belongs to no pool."""

    pressing = False

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def take(self, message: Admit | Prefill) -> None:
        raise UnsupportedError(f"this engine belongs to no pool and cannot take {type(message).__name__}")

    def cancel(self, request_id: str) -> None:
        self._engine.cancel(request_id)

    def distrust(self, source: str) -> None:
        pass

    def turn(self) -> list[FromEngine]:
        return []

    def filenos(self) -> list[int]:
        return []

    def told(self, beat: Beat) -> Beat:
        return beat

    def close(self) -> None:
        pass


def open_role(engine: Engine, pool: PoolConfig | None) -> EngineRole:
    """The role that ``engine`` is made for; raises ``ConfigError`` when its links cannot be opened."""
    if not isinstance(engine, PrefillEngine | DecodeEngine):
        return Alone(engine)
    if pool is None:
        raise ConfigError("an engine that prefills or decodes needs the options of its pool")

    from trimaran.engine.decode_role import DecodeRole  # imported here: an engine alone starts without
    from trimaran.engine.prefill_role import PrefillRole
    from trimaran.kernels.handoff import largest_batch
    from trimaran.pools.hello import Hello
    from trimaran.pools.key import PoolKey
    from trimaran.pools.layout import layout_data
    from trimaran.pools.transports import open_transport

    key, epoch = PoolKey(pool.key), secrets.randbits(EPOCH_BITS)
    transports = {name: open_transport(name, key) for name in pool.transports}

    def hello(side: "Side") -> "Hello":
        return Hello(
            role=side,
            name=pool.name,
            epoch=epoch,
            model=engine.info.digest,
            layout=layout_data(engine.executor.layout),
            transports=list(pool.transports),
            frame_bytes=largest_batch(engine.executor.layout),
        )

    if isinstance(engine, PrefillEngine):
        return PrefillRole(engine, hello("sender"), key, transports)
    receiver = hello("receiver")
    listeners = [(name, transport.listen(receiver, pool.listen.get(name))) for name, transport in transports.items()]
    return DecodeRole(engine, epoch, key, listeners)
