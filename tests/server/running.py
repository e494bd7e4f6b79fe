"""A whole server in a thread: real HTTP on loopback, a real engine process with the null executor."""

import asyncio
import signal
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import psutil

from trimaran import __version__
from trimaran.cli.serve import launch_of
from trimaran.engine.config import EngineConfig
from trimaran.kernels.null import NullModel
from trimaran.server.address import bind, url
from trimaran.server.launch_pools import TwoPools
from trimaran.server.options import ServeOptions
from trimaran.server.run import Model, serve_on

from .byte_model import END, VOCAB

NAME = "bytes"


class Running:
    """A server that answers at ``url``. ``code`` is its exit code once it has ended."""

    def __init__(
        self, path: Path, options: ServeOptions, engine: EngineConfig, certificate: tuple[str, str] | None = None
    ) -> None:
        """``certificate``: what the client shows, where the server asks for one."""
        self.code: int | None = None
        self.launch = launch_of(options, engine)
        self._sock = bind("127.0.0.1", 0)
        self.url = url(self._sock, "http" if options.ssl_certfile is None else "https")
        verify: ssl.SSLContext | bool = False
        if options.ssl_certfile is not None:
            verify = ssl.create_default_context(cafile=options.ssl_certfile)
            if certificate is not None:
                verify.load_cert_chain(*certificate)
        self.http = httpx.Client(base_url=self.url, timeout=30, verify=verify)
        self._begun = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(path, options, engine))
        self._thread.start()
        self._begun.wait()

    def _run(self, path: Path, options: ServeOptions, engine: EngineConfig) -> None:
        async def main() -> int:
            self._loop, self._stops = asyncio.get_running_loop(), asyncio.Queue[signal.Signals]()
            self._begun.set()
            return await serve_on(
                self._sock, options, Model(path, (NAME, "alias"), __version__), self.launch, self._stops
            )

        try:
            self.code = asyncio.run(main())
        except BaseException as error:  # shown by whoever waits
            self._error = error
        finally:
            self._sock.close()

    def wait_ready(self) -> None:
        while self._error is None and self._thread.is_alive():
            try:
                if self.http.get("/health").status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.02)
        self.join()
        raise RuntimeError("the server ended before it was ready")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """What the signal does."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stops.put_nowait, number)

    def join(self) -> int | None:
        self._thread.join(60)
        assert not self._thread.is_alive(), "the server did not stop"
        if self._error is not None:
            raise self._error
        return self.code

    def engine(self) -> psutil.Process:
        """The engine process, the newest of this test process's."""
        children = [child for child in psutil.Process().children() if "trimaran.engine.worker" in child.cmdline()]
        return max(children, key=lambda child: child.create_time())

    def worker(self, role: str, number: int = 0) -> psutil.Process:
        """The process of a pool's worker; fails while there is none."""
        assert isinstance(self.launch, TwoPools)
        assert self.launch.router is not None
        pool = self.launch.router.prefill if role == "prefill" else self.launch.router.decode
        process = pool.workers[number].link.process
        assert process is not None, f"no process of {role} worker {number}"
        return psutil.Process(process.pid)

    def metric(self, name: str, key: str = "none", **labels: str) -> float:
        """The value of a metric, added up over all labels but those given; ``key`` is the API key, if one is needed."""
        text = self.http.get("/metrics", headers={"authorization": f"Bearer {key}"}).text
        assert f"# TYPE {name.removesuffix('_count')} " in text, f"no metric {name}"
        lines = [line for line in text.splitlines() if line.startswith((name + " ", name + "{"))]
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        return sum(float(line.split()[-1]) for line in lines if all(label in line for label in wanted))

    def pages(self) -> float:
        """Pages that may be taken."""
        return self.metric("trimaran_pages_free") + self.metric("trimaran_pages_cached")


def eventually(true: Callable[[], bool]) -> None:
    """Waits for ``true()``; metrics lag behind by one beat."""
    until = time.monotonic() + 20
    while not true():
        assert time.monotonic() < until, "it never became true"
        time.sleep(0.02)


@contextmanager
def running(
    path: Path,
    *,
    null: NullModel | None = None,
    engine: dict[str, Any] | None = None,
    certificate: tuple[str, str] | None = None,
    **options: Any,
) -> Iterator[Running]:
    """A ready server over the byte model; leaving stops it. ``options`` are those of ``trimaran serve``."""
    null = null or NullModel(vocab=VOCAB, context=2048, eos_id=END, eos_one_in=64)
    settings = ServeOptions(model=str(path), **{"timeout_graceful_shutdown": 5.0, **options})
    config = EngineConfig(
        executor="null",
        model=str(path),  # for its vocabulary
        null=null,
        max_num_seqs=settings.max_num_seqs,
        max_waiting=settings.max_num_seqs + settings.max_waiting,
        **{"kv_memory_bytes": 2**20, **(engine or {})},
    )
    with serving(path, settings, config, certificate) as server:
        yield server


@contextmanager
def serving(
    path: Path, options: ServeOptions, engine: EngineConfig, certificate: tuple[str, str] | None = None
) -> Iterator[Running]:
    """A ready server over any model; leaving stops it. It keeps files in a folder of its own unless told where."""
    with TemporaryDirectory() as folder:
        server = Running(path, replace(options, files_dir=options.files_dir or folder), engine, certificate)
        with server.http:
            server.wait_ready()
            try:
                yield server
            finally:
                server.stop()
                server.join()
