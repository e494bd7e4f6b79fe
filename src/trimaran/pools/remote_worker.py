"""The other end of ``relay.py``: waits for servers that have the key, and gives the last that came an engine process.

Each server gets an engine of its own, which ends with the connection: nothing of one server's requests outlives it.
A server that comes while another is served takes its place, for it may be the same one after its host has vanished.
"""

import contextlib
import json
import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from trimaran.base.errors import TrimaranError
from trimaran.pools.key import PoolKey
from trimaran.pools.line import open_line
from trimaran.pools.link import MEET_SECONDS
from trimaran.pools.pump import pump
from trimaran.pools.records import Records
from trimaran.pools.stream import Stream
from trimaran.pools.tcp import TcpTransport

MAX_MEETING = 16  # connections that have not proved themselves yet
END_SECONDS = 5.0  # for an engine to end by itself

log = logging.getLogger(__name__)


class RemoteWorker:
    """Serves engines of one configuration. ``serve`` until ``close``, which any thread may call."""

    def __init__(self, config: Mapping[str, Any], key: PoolKey, name: str, address: str) -> None:
        """Listens at once; raises ``ConfigError`` when ``address`` cannot be had."""
        self._config = config
        self._key = key
        self._name = name
        self._transport = TcpTransport(key)
        self._listening, self.address = self._transport.open_listening(address)
        self._meeting = threading.Semaphore(MAX_MEETING)
        self._lock = threading.Lock()
        self._current: Records | None = None
        self._serving = threading.Lock()  # one engine at a time
        self._closed = False

    def serve(self) -> None:
        """Accepts until closed."""
        while True:
            try:
                accepted, peer = self._listening.accept()
            except OSError:
                return
            if not self._meeting.acquire(blocking=False):
                accepted.close()
                continue
            threading.Thread(target=self._meet, args=(accepted, peer[0]), daemon=True).start()

    def close(self) -> None:
        """Stops listening and ends the engine; idempotent."""
        with self._lock:
            self._closed = True
            if self._current is not None:
                self._current.stream.shutdown()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        with self._serving:
            pass  # the engine has ended

    def _meet(self, accepted: socket.socket, peer: str) -> None:
        stream = Stream(accepted)
        try:
            self._transport.prepare(accepted)
            until = time.monotonic() + MEET_SECONDS
            records = open_line(stream, self._key, self._name, dialled=False, until=until)
        except TrimaranError as error:
            log.warning("a connection from %s was turned away: %s", peer, error)
            stream.close()
            return
        finally:
            self._meeting.release()
        with self._lock:
            if self._closed:
                stream.close()
                return
            if self._current is not None:
                self._current.stream.shutdown()
            self._current = records
        with self._serving:
            if self._current is records:
                log.info("a server at %s has connected", peer)
                self._run(records)
                log.info("the server at %s has left", peer)
            else:
                stream.close()

    def _run(self, records: Records) -> None:
        """An engine process for as long as the connection lasts."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            end = theirs.fileno()
            command = [sys.executable, "-m", "trimaran.engine.worker", str(end), self._name.replace(" ", "-")]
            engine = subprocess.Popen(command, pass_fds=(end,), stdin=subprocess.PIPE, start_new_session=True)
            theirs.close()
            assert engine.stdin is not None
            with engine, engine.stdin:
                with contextlib.suppress(OSError):
                    engine.stdin.write(json.dumps(self._config).encode() + b"\n")
                    engine.stdin.flush()
                pump(ours, records)
                engine.terminate()
                try:
                    engine.wait(END_SECONDS)
                except subprocess.TimeoutExpired:
                    engine.kill()
