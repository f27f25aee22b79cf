"""Where this machine keeps what is made once: the cache directory, locks, and files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from typing import BinaryIO

logger = logging.getLogger(__name__)


def cache_root() -> str:
    """The directory for indexes and copies: ``$TORCHZEPHON_CACHE``, else ``torchzephon`` in the user's cache.

    Where that cannot be written (a read-only home), a directory of the user's under the temporary directory.
    """
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return _writable(os.path.abspath(os.environ.get("TORCHZEPHON_CACHE") or os.path.join(base, "torchzephon")))


@functools.lru_cache
def _writable(root: str) -> str:
    try:
        os.makedirs(root, exist_ok=True)
        if os.access(root, os.W_OK):
            return root
    except OSError:
        pass
    fallback = _own_temporary()
    logger.warning(
        "the cache directory %s cannot be written, using %s; set TORCHZEPHON_CACHE to choose", root, fallback
    )
    return fallback


def _own_temporary() -> str:
    """A directory under the temporary directory that belongs to this user alone."""
    path = os.path.join(tempfile.gettempdir(), f"torchzephon-{os.getuid()}")
    os.makedirs(path, mode=0o700, exist_ok=True)
    if os.stat(path).st_uid != os.getuid():
        raise PermissionError(f"{path} belongs to another user; set TMPDIR or TORCHZEPHON_CACHE to a place of your own")
    return path


@contextlib.contextmanager
def node_lock(name: str) -> Iterator[None]:
    """Holds a lock that is shared by all processes of this user on this machine.

    Lock files lie in the temporary directory, not beside what they guard: network file systems often cannot lock,
    and what is guarded appears atomically, so another machine that does the same work at once does no harm. The
    kernel frees the lock of a process that dies.

    Args:
        name: what is guarded.
    """
    import filelock

    directory = os.path.join(_own_temporary(), "locks")
    os.makedirs(directory, exist_ok=True)
    lock = filelock.FileLock(os.path.join(directory, short_hash(name) + ".lock"))
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        logger.info("waiting for another process that works on %s", name)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def atomic_file(path: str) -> Iterator[BinaryIO]:
    """Opens a file for writing that appears at ``path``, whole, when the block ends without an exception.

    The temporary name holds the machine, the process and the thread, so that two writers never share it.
    """
    temporary = os.path.join(
        os.path.dirname(path),
        f".{os.path.basename(path)}.{socket.gethostname()}.{os.getpid()}.{threading.get_ident()}.tmp",
    )
    try:
        with open(temporary, "wb") as out:
            yield out
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def short_hash(*parts: object) -> str:
    """A file name for anything that can be written out: 32 hexadecimal digits."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()
