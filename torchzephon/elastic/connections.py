"""Connections: all-reduces between the data-parallel ranks, apart from everybody else's, that no rank waits to end."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from torchzephon.elastic.assignment import Assignment

_PATIENCE = timedelta(seconds=1)  # until a rank that waits asks whether others know of one that is gone
_LOST = "lost"


class _Memory(NamedTuple):
    """Numbers, int64 ``[n]``: the same ones as an array and as a tensor."""

    values: NDArray[np.int64]
    tensor: torch.Tensor


class Reduction(NamedTuple):
    """An all-reduce under way: where its numbers are, and what tells when it is done."""

    memory: _Memory
    work: dist.Work


class Connections:
    """Gloo connections between data-parallel ranks, which go when their owner goes.

    They are not a group of ``torch.distributed``'s registry: such a group lives until the end of the process, and a
    job may make many loaders, one for each evaluation.

    Destroying a gloo group waits for what is under way on it. Ranks that ended at different places would wait for
    each other, at the end of the process for ever. So a group is kept until nothing is under way, and what is still
    open when the process ends is left to the system.

    Args:
        assignment: the ranks, with a process group behind them. Every rank of it must construct this.
    """

    _open: ClassVar[list[tuple[Any, list[dist.Work]]]] = []  # of owners that are gone

    def __init__(self, assignment: Assignment) -> None:
        # Here, since a torch without gloo or torch.distributed has them not.
        from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo
        from torch.distributed.distributed_c10d import _get_default_store

        self._open[:] = [entry for entry in self._open if not _close(*entry)]
        store: Any = _get_default_store()
        ranks = dist.get_process_group_ranks(assignment.group)
        name = f"torchzephon/{hashlib.sha256(repr(sorted(ranks)).encode()).hexdigest()[:16]}"
        # Counted in the store, so that a job which starts over with a new store counts anew on all ranks.
        number = store.add(f"{name}/{assignment.rank}", 1)
        self._works: list[dist.Work] = []
        self._idle: list[_Memory] = []  # used again: to make a tensor takes longer than to send it
        self._options = dist.AllreduceOptions()
        self._options.reduceOp = dist.ReduceOp.MAX
        self._store: Any = PrefixStore(f"{name}/{number}", store)
        self._group: Any = ProcessGroupGloo(  # the type stubs know little of it
            self._store, assignment.rank, assignment.size, store.timeout
        )
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._group))  # so that the interpreter's end destroys nothing

    def __del__(self) -> None:
        if (group := getattr(self, "_group", None)) is not None:
            self._open.append((group, self._works))

    def maximum(self, numbers: Sequence[int]) -> Reduction:
        """Begins to replace numbers, always as many, by the largest ones of all ranks.

        Raises:
            RuntimeError: when the connections are broken.
        """
        if self._group is None:
            raise RuntimeError("the connections to the other data-parallel ranks were lost before; restart the ranks")
        values, tensor = memory = self._idle.pop() if self._idle else _memory(len(numbers))
        values[:] = numbers
        work = self._group.allreduce([tensor], self._options)
        self._works = [*(work for work in self._works if not work.is_completed()), work]
        return Reduction(memory, work)

    def wait(self, reduction: Reduction) -> list[int]:
        """The largest numbers of all ranks, once they are there.

        Raises:
            RuntimeError: when a rank is gone. The neighbours of a rank notice that it is, and tell the others.
        """
        try:
            while not _is_done(reduction.work, _PATIENCE):
                if self._store.check([_LOST]):
                    raise RuntimeError("another rank has lost its connection")
        except RuntimeError:
            self._open.append((self._group, self._works))
            self._group = None
            with suppress(RuntimeError):  # the rank that keeps the store may be the one that is gone
                self._store.set(_LOST, "")
            raise
        numbers: list[int] = reduction.memory.values.tolist()
        self._idle.append(reduction.memory)
        return numbers


def _memory(size: int) -> _Memory:
    tensor = torch.empty(size, dtype=torch.int64)
    return _Memory(tensor.numpy(), tensor)


def _is_done(work: dist.Work, patience: timedelta) -> bool:
    try:
        work.wait(patience)
    except RuntimeError:
        if not work.is_completed():
            return False
        work.wait()  # raises what went wrong, if it did not just get done
    return True


def _close(group: Any, works: list[dist.Work]) -> bool:
    """Lets go of a group, which is destroyed with its last reference, unless something is under way on it."""
    if not all(work.is_completed() for work in works):
        return False
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(group))
    return True
