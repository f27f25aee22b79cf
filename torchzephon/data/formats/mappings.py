"""Memory for what is decoded: used again instead of given back."""

from __future__ import annotations

import contextlib
import mmap
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

_PAGE = 1 << 12
_MOST_KEPT = 8


class _Lease:
    """Keeps a mapping from being used again as long as anything refers to it."""

    def __init__(self, mapping: mmap.mmap) -> None:
        self._mapping = mapping

    def __del__(self) -> None:  # anywhere, in any thread: it must not wait for a lock
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

    step = max(_PAGE, 1 << max(0, size.bit_length() - 3))  # sizes that differ by less than a quarter are one
    rounded = -(-size // step) * step
    mapping = _take(rounded) or _new(rounded)
    writable = pa.py_buffer(mapping)
    return writable, pa.foreign_buffer(writable.address, writable.size, _Lease(mapping))


def _take(size: int) -> mmap.mmap | None:
    for _ in range(len(_free)):
        try:
            mapping = _free.popleft()
        except IndexError:  # another thread took it
            return None
        if size <= len(mapping) <= 2 * size:
            return mapping
        _free.append(mapping)
    return None


def _new(size: int) -> mmap.mmap:
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    mapping = mmap.mmap(-1, size, **private)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            mapping.madvise(mmap.MADV_HUGEPAGE)
    return mapping
