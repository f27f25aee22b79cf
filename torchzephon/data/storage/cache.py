"""The shard cache: local copies of files that are remote or compressed."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from typing import BinaryIO

from torchzephon.data.sizes import format_bytes
from torchzephon.data.storage.places import atomic_file, cache_root, node_lock
from torchzephon.errors import DataError

logger = logging.getLogger(__name__)


class ShardCache:
    """A directory of whole files, made once per machine and dropped least recently used first.

    However many processes want a file at once, one makes it and the others wait. Files appear atomically, so a
    process that is killed leaves no half file under a good name. A file that somebody has open can be dropped: its
    bytes stay until it is closed.

    Args:
        directory: where; None for ``shards`` in :func:`~torchzephon.data.storage.places.cache_root`.
        limit: bound on the bytes of all files, kept before a file is made; None for no bound.
    """

    def __init__(self, directory: str | None = None, limit: int | None = None) -> None:
        self._directory = directory
        self.limit = limit

    @property
    def directory(self) -> str:
        """Where the files lie."""
        return self._directory or os.path.join(cache_root(), "shards")

    def open(self, key: str, size: int, fill: Callable[[BinaryIO], None]) -> BinaryIO:
        """Opens the file of ``key``, unbuffered; makes it first where it is missing or has another size.

        Args:
            key: file name, different for different contents.
            size: bytes that the file has.
            fill: writes the contents.

        Raises:
            DataError: when the file is larger than the cache may be, or ``fill`` writes another number of bytes.
            OSError: when the disk is full: names the directory.
        """
        directory = self.directory
        path = os.path.join(directory, key)
        while True:
            try:
                file = open(path, "rb", buffering=0)  # noqa: SIM115 - handed out
            except FileNotFoundError:
                pass
            else:
                if os.fstat(file.fileno()).st_size == size:
                    with contextlib.suppress(OSError):  # access times are often off; the cache may be another user's
                        os.utime(path)
                    return file
                file.close()
            with node_lock(path):
                if not os.path.exists(path) or os.path.getsize(path) != size:
                    self._make(directory, path, size, fill)

    def _make(self, directory: str, path: str, size: int, fill: Callable[[BinaryIO], None]) -> None:
        os.makedirs(directory, exist_ok=True)
        if self.limit is not None:
            with node_lock(directory):
                self._make_room(directory, path, size, self.limit)
        logger.info("making a local copy, %s: %s", format_bytes(size), path)
        try:
            with atomic_file(path) as out:
                os.truncate(out.fileno(), size)  # counts in full from now on for others who make room
                fill(out)
                if out.tell() != size:
                    raise DataError(f"a copy of {size} bytes was expected and {out.tell()} bytes came: {path}")
                out.flush()
                os.fsync(out.fileno())
        except OSError as error:
            if error.filename is None:
                error.filename = path
            raise

    @staticmethod
    def _make_room(directory: str, path: str, size: int, limit: int) -> None:
        if size > limit:
            raise DataError(
                f"a local copy takes {format_bytes(size)}, more than the shard cache may hold ({format_bytes(limit)}): "
                f"raise cache_size, or split the file: {path}"
            )
        files = []
        with os.scandir(directory) as entries:
            for entry in entries:
                status = entry.stat()
                files.append((status.st_mtime_ns, status.st_size, entry.path))
        total = sum(file_size for _, file_size, _ in files)
        for _, file_size, old in sorted(files):
            if total + size <= limit:
                break
            if not old.endswith(".tmp"):
                os.unlink(old)
                total -= file_size
