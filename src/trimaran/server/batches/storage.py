"""The folder behind ``/v1/files`` and ``/v1/batches``: one server's at a time, made when it is first needed.

state.sqlite    what there is, and the answers of batches that have not ended
content/ID      a file's bytes
arriving/ID     the same before it is whole: of no use to a server that starts
lock            held by the server that uses the folder
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar

from trimaran.base.errors import ConfigError
from trimaran.checkpoint.file_lock import try_lock
from trimaran.server.batches.batch_store import BATCH_TABLES, BatchStore
from trimaran.server.batches.file_store import FILE_TABLES, FileLimits, FileStore
from trimaran.server.database import Database
from trimaran.server.errors import StorageError

P = ParamSpec("P")
T = TypeVar("T")


class Storage:
    """``files`` and ``batches`` are there once ``open`` has returned. ``run`` does what takes a moment of the disk, in
    the order in which it was asked for."""

    def __init__(self, directory: Path, limits: FileLimits) -> None:
        self.directory = directory
        self._limits = limits
        self._stack = contextlib.ExitStack()
        self._thread = ThreadPoolExecutor(1, "storage")
        self._opening = asyncio.Lock()
        self._open = False

    @property
    def exists(self) -> bool:
        """Whether some server has used the folder."""
        return (self.directory / "state.sqlite").exists()

    def open_now(self) -> None:
        """Takes the folder; raises ``ConfigError``."""
        with contextlib.ExitStack() as stack:
            try:
                self._take(stack)
            except (OSError, sqlite3.Error) as error:
                raise ConfigError(f"--files-dir {self.directory} cannot be used: {error}") from error
            self._stack = stack.pop_all()
        self._open = True

    def _take(self, stack: contextlib.ExitStack) -> None:
        for folder in (self.directory, self.directory / "content", self.directory / "arriving"):
            folder.mkdir(0o700, parents=True, exist_ok=True)
        if not stack.enter_context(try_lock(self.directory / "lock")):
            raise ConfigError(
                f"another server keeps its files in {self.directory}; start this one with a --files-dir of its own"
            )
        database = Database(self.directory / "state.sqlite", FILE_TABLES + BATCH_TABLES, "--files-dir")
        stack.callback(database.close)
        self.files = FileStore(database, self.directory, self._limits)
        self.batches = BatchStore(database)
        self.files.forget_strays()

    async def open(self) -> None:
        """Takes the folder if that has not been done; raises ``StorageError``."""
        async with self._opening:
            if not self._open:
                try:
                    await asyncio.to_thread(self.open_now)
                except ConfigError as error:
                    raise StorageError(str(error)) from error

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """``work(*args, **kwargs)``; raises ``StorageError`` where the disk is the trouble.

        It is done even when the caller is cancelled.
        """
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, lambda: work(*args, **kwargs))
        except (OSError, sqlite3.Error) as error:
            raise StorageError(f"{self.directory}: {error}") from error

    def close(self) -> None:
        """Gives the folder back, after all that ``run`` has begun."""
        self._thread.shutdown()
        self._stack.close()
        self._open = False
