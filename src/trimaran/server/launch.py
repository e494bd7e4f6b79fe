"""Starts what continues prompts: here one engine process, in ``launch_pools.py`` two pools of them."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from trimaran.base.messages import Started
from trimaran.host.process import EngineProcess
from trimaran.server.options import ServeOptions

if TYPE_CHECKING:
    from trimaran.server.engine import Backend
    from trimaran.server.engine_metrics import EngineMetrics
    from trimaran.server.metrics import Metrics
    from trimaran.text.encoder_tokenizer import EncoderTokenizer
    from trimaran.text.tokenizer import Tokenizer


class Launch(Protocol):
    """Engine processes, from their start to when a ``Backend`` takes them over. Light to import."""

    async def start(self) -> Started:
        """Starts all; what is served. Raises what a process refuses with; then nothing is left running."""
        ...

    def connect(self, options: ServeOptions, metrics: "Metrics") -> "Backend":
        """Takes over what ``start`` started."""
        ...

    async def check(self, options: ServeOptions, tokenizer: "Tokenizer | EncoderTokenizer") -> None:
        """Raises a ``TrimaranError`` when what was connected does not work together."""
        ...

    def took(self, seconds: float) -> None:
        """Shows what the start took: so many seconds in all, until now."""
        ...

    async def stop(self) -> None:
        """Ends what ``start`` started and nothing has taken over."""
        ...


class OneEngine:
    """A single engine."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """``config`` is the engine process's configuration."""
        self._config = config
        self._process = EngineProcess(config)
        self._started: Started | None = None
        self._metrics: EngineMetrics | None = None

    async def start(self) -> Started:
        self._started = await self._process.start()
        return self._started

    def connect(self, options: ServeOptions, metrics: "Metrics") -> "Backend":
        from trimaran.server.engine import EngineLink
        from trimaran.server.restarts import RestartPolicy

        policy = RestartPolicy(options.restart, options.restart_limit, options.restart_stable)
        self._metrics = metrics.engine
        again = partial(EngineProcess, self._config)
        return EngineLink(self._process, again, metrics.engine, options.timeout_engine, policy)

    async def check(self, options: ServeOptions, tokenizer: "Tokenizer | EncoderTokenizer") -> None:
        """An engine has produced a token when it has started: there is no more to it."""

    def took(self, seconds: float) -> None:
        assert self._metrics is not None, "not connected"
        assert self._started is not None, "not started"
        self._metrics.start_took(self._started.phases, seconds)

    async def stop(self) -> None:
        await self._process.stop(0.0)
