"""Memory for what is decoded: used again instead of given back."""

from __future__ import annotations

import contextlib
import mmap
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

_PAGE = 1 << 12
_MOST_KEPT = 32


class _Lease:
    """Keeps a mapping from being used again as long as anything refers to it."""

    _mapping: mmap.mmap | None = None  # should the constructor be interrupted

    def __init__(self, mapping: mmap.mmap) -> None:
        self._mapping = mapping

    def __del__(self) -> None:  # anywhere, in any thread: it must not wait for a lock
        if self._mapping is not None:
            _free.append(self._mapping)


_free: deque[mmap.mmap] = deque(maxlen=_MOST_KEPT)  # beyond it, the oldest goes back to the system


def lease(size: int) -> tuple[pa.Buffer, pa.Buffer]:
    """A piece of memory of at least ``size`` bytes, not shared with other processes.

    Touching memory for the first time takes the system longer than decoding into it, and allocators keep more than
    what is in use.

    Returns:
        The memory to write to, which must be let go of after that; and the same to read from, which holds it.
    """
    import pyarrow as pa

    rounded = -(-size // _PAGE) * _PAGE
    mapping = _take(rounded) or _new(rounded)
    writable = pa.py_buffer(mapping)
    return writable, pa.foreign_buffer(writable.address, writable.size, _Lease(mapping))


def _take(size: int) -> mmap.mmap | None:
    """The free mapping that fits best, unless it is much too large."""
    mappings: list[mmap.mmap] = []
    with contextlib.suppress(IndexError):  # empty, be it because another thread is looking too
        while True:
            mappings.append(_free.popleft())
    found = min((each for each in mappings if size <= len(each) <= size + size // 2), key=len, default=None)
    _free.extend(each for each in mappings if each is not found)
    return found


def _new(size: int) -> mmap.mmap:
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    mapping = mmap.mmap(-1, size, **private)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            mapping.madvise(mmap.MADV_HUGEPAGE)
    return mapping
