"""Block: a few samples in columns, the item that flows between nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from torchzephon.curriculum.work import Work
from torchzephon.data.ragged import Ragged

if TYPE_CHECKING:
    from torchzephon.data.dataset import Dataset

Column: TypeAlias = "list[Any] | NDArray[Any] | Ragged"


class _Missing:
    """Stands in a list column for a field that a sample does not have (unlike None, which is a null)."""

    def __repr__(self) -> str:
        return "MISSING"

    def __reduce__(self) -> str:
        return "MISSING"


MISSING = _Missing()


class Block(Sequence[dict[str, Any]]):
    """A few dozen to a few hundred samples, stored as columns of equal length.

    It is also a ``Sequence`` of sample dicts, so that stock nodes compose: ``Unbatcher(reader)`` yields dicts.

    Args:
        columns: name -> column: ``list`` (text and other objects), numpy array ``[n, ...]``, or :class:`Ragged`.
        work: the pointers of the ``n`` samples, where known. Lost when a Block is pickled.
        datasets: what ``work.dataset`` points into.
    """

    __slots__ = ("columns", "datasets", "size", "work")

    def __init__(
        self,
        columns: Mapping[str, Column],
        work: Work | None = None,
        datasets: Sequence[Dataset] = (),
        *,
        size: int = 0,
    ) -> None:
        self.columns: dict[str, Column] = dict(columns)
        self.work = work
        self.datasets = datasets
        self.size = len(next(iter(self.columns.values()))) if self.columns else size

    @classmethod
    def from_samples(cls, samples: Sequence[Mapping[str, Any]]) -> Block:
        """Turns sample dicts into columns; a field that only some samples have is ``MISSING`` in the others."""
        names = dict.fromkeys(name for sample in samples for name in sample)
        return cls({name: [sample.get(name, MISSING) for sample in samples] for name in names}, size=len(samples))

    def replace(self, columns: Mapping[str, Column]) -> Block:
        """The same samples (and pointers) with other columns."""
        return Block(columns, self.work, self.datasets, size=self.size)

    def take(self, rows: NDArray[np.intp]) -> Block:
        """The given rows, in the given order."""
        picked: dict[str, Column] = {}
        for name, column in self.columns.items():
            if isinstance(column, list):
                picked[name] = [column[row] for row in rows.tolist()]
            else:
                picked[name] = column.take(rows) if isinstance(column, Ragged) else column[rows]
        return Block(picked, self.work[rows] if self.work is not None else None, self.datasets, size=len(rows))

    def locate(self, row: int) -> str:
        """Where a sample came from, for messages: dataset, file and row, as far as known."""
        if self.work is None:
            return f"row {row} of a block"
        dataset = self.datasets[int(self.work.dataset[row])]
        return dataset.locate(int(self.work.shard[row]), int(self.work.row[row]))

    def unread(self, row: int, field: str) -> str:
        """For messages on a field that a sample lacks: what ``Dataset(columns=...)`` was to read and did not find."""
        sample = self[row]
        if field in sample or self.work is None:
            return ""
        columns = self.datasets[int(self.work.dataset[row])].columns or {}
        absent = [f"{stored!r} of the file as {name!r}" for name, stored in columns.items() if name not in sample]
        return f" (Dataset(columns=...) reads {', '.join(absent)}: check these names)" if absent else ""

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: Any) -> Any:
        """An int gives a sample dict, a slice a Block."""
        if isinstance(index, slice):
            rows = range(self.size)[index]
            if rows.step != 1:
                return self.take(np.asarray(rows, np.intp))
            columns = {name: column[index] for name, column in self.columns.items()}
            return Block(columns, self.work[index] if self.work is not None else None, self.datasets, size=len(rows))
        index = range(self.size)[index]
        values = ((name, column[index]) for name, column in self.columns.items())
        return {name: value for name, value in values if value is not MISSING}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[row] for row in range(self.size))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.columns, self.size)

    def __repr__(self) -> str:
        return f"Block({self.size} samples, columns {sorted(self.columns)})"


def _rebuild(columns: dict[str, Column], size: int) -> Block:
    return Block(columns, size=size)


def as_block(item: Block | Mapping[str, Any] | Iterable[Any]) -> Block:
    """Takes what may flow between nodes: a Block, a sample dict, or a list of sample dicts (or of Blocks).

    Raises:
        TypeError: for anything else.
    """
    if isinstance(item, Block):
        return item
    if isinstance(item, Mapping):
        return Block.from_samples([item])
    if isinstance(item, Work):
        raise TypeError("expected samples, got Work, which only points to them: put a Reader between")
    if isinstance(item, Iterable) and not isinstance(item, (str, bytes)):
        samples: list[Mapping[str, Any]] = []
        for part in item:
            samples.extend(as_block(part) if not isinstance(part, Mapping) else [part])
        return Block.from_samples(samples)
    raise TypeError(f"expected a Block, a sample dict or a list of sample dicts, got {type(item).__name__}")
