"""Reader: pointers in, samples out."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torchdata.nodes import BaseNode

from torchzephon.curriculum.work import InShard, Work
from torchzephon.data.block import Block, Column
from torchzephon.data.join import join_columns, own_columns
from torchzephon.data.pool import Pool, pool_of_process
from torchzephon.data.sizes import parse_bytes
from torchzephon.data.storage.store import Store
from torchzephon.errors import DataError, StateError
from torchzephon.nodes.decode_ahead import decode_ahead
from torchzephon.nodes.graph import Estimate, check_state, walk
from torchzephon.nodes.skips import Skips
from torchzephon.nodes.work_source import WorkSource
from torchzephon.nodes.working_set import WorkingSet, working_set_of

T = TypeVar("T")


class Reader(BaseNode[Block]):
    """Reads the samples that a work source points to.

    A Work becomes one Block, or several where its samples take more than the work source's ``block_bytes``. Where
    the blocks are cut never changes the data or what the state means: it counts pointers.

    The readers of a process that are given the same ``memory`` share it, and so do the lanes. Row groups are decoded
    piece by piece, and the pieces let go of as their rows were read: a lane that reads in order holds few of them. What
    a lane needs next is decoded in the background if the row groups that the lanes begin in take at most half of the
    memory.

    Args:
        source: yields Work; the graph's leaf must be a :class:`~torchzephon.nodes.work_source.WorkSource`.
        memory: bound on the open files and decoded row groups of the process, bytes or a text such as ``"2GB"``.
        cache_dir: directory for local copies of remote and compressed files; None for the user's cache directory.
        cache_size: bound on the bytes in it, such as ``"500GB"``; None for no bound.
        on_error: ``"raise"``, or ``"skip"`` to pass over samples that cannot be read: they are counted in the state,
            and some are logged. A file that is gone or has changed always raises.

    Raises:
        TypeError: for a source that is not a node, a leaf that is not a work source, or a size of another type.
        ValueError: for a text that is no size, or another ``on_error``.
        DataError: (while iterating) for data that cannot be read.
    """

    passes_blocks = True
    SOURCE_KEY = "source"
    USED_KEY = "used"

    def __init__(
        self,
        source: BaseNode[Work],
        *,
        memory: int | str = "1GB",
        cache_dir: str | os.PathLike[str] | None = None,
        cache_size: int | str | None = None,
        on_error: str = "raise",
    ) -> None:
        super().__init__()
        if on_error not in ("raise", "skip"):
            raise ValueError(f"on_error must be 'raise' or 'skip', got {on_error!r}")
        self.source = source
        self.on_error = on_error
        self._leaf = _work_source(source)
        self._pool = pool_of_process(parse_bytes(memory, "memory"))
        self._stores = [
            dataset.store if cache_dir is cache_size is None else dataset.store.with_cache(cache_dir, cache_size)
            for dataset in self._leaf.datasets
        ]
        self._skips = Skips(source)
        self._begin(used=0)

    @property
    def _working_set(self) -> WorkingSet:
        return working_set_of(self._pool)

    def _begin(self, used: int) -> None:
        self._ahead = used  # pointers after the loaded anchor that are used up already
        self._anchor: dict[str, Any] | None = None  # the source's state before the work
        self._work: Work | None = None  # what is being read
        self._at = 0  # pointers of the work that are used up
        self._sizes: NDArray[np.int64] | None = None  # bytes of each sample of the work, where it must be cut

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Goes to the beginning, or to where the state was taken."""
        super().reset(initial_state)
        self._skips.reset(initial_state)
        self._working_set.join(self._leaf.lane or 0, self)
        if initial_state is None:
            self._begin(used=0)
            self.source.reset(None)
            return
        check_state(self, initial_state, self.USED_KEY)
        self._begin(used=initial_state[self.USED_KEY])
        self.source.reset(initial_state[self.SOURCE_KEY])

    def get_state(self) -> dict[str, Any]:
        """The source's state before the work that is being read, how much of that is used, and what was skipped."""
        if self._work is None:
            state = {self.SOURCE_KEY: self.source.state_dict(), self.USED_KEY: self._ahead}
        else:
            state = {self.SOURCE_KEY: self._anchor, self.USED_KEY: self._at}
        return {**state, **self._skips.state()}

    def next(self) -> Block:
        """The next samples, at least one."""
        self._working_set.begin(self, self._leaf, self._stores, self._pool)
        while True:
            work = self._work or self._pull()
            block, used = self._read_block(work[self._at :])
            self._at += used
            if self._at == len(work):
                self._work = None
            if len(block):
                return block

    def decode_ahead(self) -> None:
        """Has what is read next decoded in the background: see :class:`~torchzephon.nodes.working_set.DecodesAhead`."""
        decode_ahead(self._leaf, self._stores, self._pool)

    def describe(self) -> Mapping[str, Any]:
        """Nothing: no argument changes the data. ``on_error`` decides whether a bad sample is passed over or fatal."""
        return {}

    def estimate(self, source: Estimate | None) -> Estimate | None:
        """As much as the source; about a block for each Work."""
        return source

    def _pull(self) -> Work:
        """The next work that is not used up already."""
        while True:
            anchor = self.source.state_dict()
            try:
                work = next(self.source)
            except StopIteration:
                if self._ahead:
                    raise StateError(
                        f"Reader: the source ended {self._ahead} samples before the place that the state was saved at: "
                        "its data has changed"
                    ) from None
                raise
            if not isinstance(work, Work):
                raise TypeError(f"Reader: the source must yield Work, got {type(work).__name__}")
            if self._ahead < len(work):
                self._anchor, self._work, self._sizes = anchor, work, None
                self._at, self._ahead = self._ahead, 0
                if self._working_set.decodes_ahead:
                    self.decode_ahead()
                return work
            self._ahead -= len(work)

    def _read_block(self, work: Work) -> tuple[Block, int]:
        """Reads as many of the samples as fit into a block.

        Returns:
            The block, and how many pointers it took, skipped ones included.
        """
        limit = self._leaf.block_bytes
        if self._sizes is None:
            sizes = np.zeros(len(work), np.int64)
            reads = []
            for group in work.by_shard():
                sizes[group.at] = self._row_bytes(group)
                if sizes.sum() <= limit or len(work) == 1:
                    reads.append(self._read(group))  # at once: when the pool is small, it may be gone later
            if sizes.sum() <= limit or len(work) == 1:
                return self._assemble(work, reads), len(work)
            self._sizes = np.append(np.zeros(self._at, np.int64), sizes)
        count = max(1, int(np.searchsorted(np.cumsum(self._sizes[self._at :]), limit, "right")))
        work = work[:count]
        return self._assemble(work, [self._read(group) for group in work.by_shard()]), count

    def _row_bytes(self, group: InShard) -> NDArray[np.int64]:
        sizes = np.zeros(len(group.rows), np.int64)
        found, rows, _ = self._of_good_rows(group, self._leaf.datasets[group.dataset].row_bytes)
        if found is not None:
            sizes[rows] = found
        return sizes

    def _read(self, group: InShard) -> _Read:
        columns, rows, errors = self._of_good_rows(group, self._leaf.datasets[group.dataset].read)
        return _Read(columns or {}, group.at[rows], errors)

    def _of_good_rows(
        self, group: InShard, read: Callable[[int, NDArray[np.int64], Store, Pool], T]
    ) -> tuple[T | None, NDArray[np.intp], list[str]]:
        """Reads what can be read of a group, or raises, as ``on_error`` says.

        Returns:
            What ``read`` gave, None where nothing could be read; for which rows of the group; what the others lack.
        """
        rows = np.arange(len(group.rows))
        errors: list[str] = []
        while len(rows):
            try:
                return read(group.shard, group.rows[rows], self._stores[group.dataset], self._pool), rows, errors
            except DataError as error:
                if self.on_error == "raise" or error.row is None:
                    raise
                errors.append(str(error))
                rows = np.delete(rows, error.row)
        return None, rows, errors

    def _assemble(self, work: Work, reads: list[_Read]) -> Block:
        """Puts what was read from several shards into the order of the pointers."""
        errors = [error for read in reads for error in read.errors]
        if errors:
            for error in errors:
                self._skips.add(error)
            good = np.sort(np.concatenate([read.at for read in reads]))
            reads = [_Read(read.columns, np.searchsorted(good, read.at), []) for read in reads if len(read.at)]
            work = work[good]
        if len(reads) == 1:
            return Block(own_columns(reads[0].columns), work, self._leaf.datasets, size=len(work))
        which, rows = np.empty(len(work), np.intp), np.empty(len(work), np.intp)
        for index, read in enumerate(reads):
            which[read.at] = index
            rows[read.at] = np.arange(len(read.at))
        columns = join_columns([read.columns for read in reads], which, rows)
        return Block(columns, work, self._leaf.datasets, size=len(work))


@dataclass(frozen=True)
class _Read:
    """The samples of a group.

    Attributes:
        columns: of ``n`` rows.
        at: intp ``[n]``, where they stand in the work.
        errors: of the samples that were skipped.
    """

    columns: Mapping[str, Column]
    at: NDArray[np.intp]
    errors: list[str]


def _work_source(source: Any) -> WorkSource:
    if not isinstance(source, BaseNode):
        raise TypeError(f"Reader: source must be a node that yields Work, got {type(source).__name__}")
    *_, leaf = walk(source)
    if not isinstance(leaf, WorkSource):
        raise TypeError(
            f"Reader: the graph begins with {type(leaf).__name__}, a leaf that is not lane-aware; it must begin with a "
            "WorkSource such as MixtureWorkSource"
        )
    return leaf
