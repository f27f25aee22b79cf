"""How many threads an encoder may take, and telling it to the libraries."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager


def encoder_threads() -> int:
    """The cores that this process may use, shared with the other ranks of this node and the workers of its loader."""
    from torch.utils.data import get_worker_info

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    worker = get_worker_info()
    sharers = _local_ranks() * (worker.num_workers if worker is not None else 1)
    return max(1, cores // sharers)


def _local_ranks() -> int:
    """Processes that torchrun started on this node."""
    text = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, int(text)) if text.isdigit() else 1


_setting = threading.Lock()


@contextmanager
def thread_limit(variable: str, threads: int) -> Iterator[None]:
    """Sets a variable to a number of threads, 1 at least, while a library makes its pool, which it does once.

    A value that the user has set stays. Afterwards the environment variable is gone again, so that it does not reach
    subprocesses, which may have another share of the cores.
    """
    with _setting:
        if variable in os.environ:
            yield
            return
        os.environ[variable] = str(max(1, threads))
        try:
            yield
        finally:
            del os.environ[variable]
