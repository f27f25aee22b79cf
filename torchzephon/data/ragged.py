"""Ragged: a column of variable-length arrays in two flat buffers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Ragged:
    """A column of ``n`` one-dimensional arrays: row ``i`` is ``values[offsets[i]:offsets[i + 1]]``.

    Attributes:
        values: ``[m]``, all rows one after another, any dtype.
        offsets: int64 ``[n + 1]``, ascending. ``offsets[0]`` need not be 0: a slice shares its parent's values.
    """

    __slots__ = ("offsets", "values")

    def __init__(self, values: NDArray[Any], offsets: NDArray[np.int64]) -> None:
        self.values = values
        self.offsets = offsets

    @classmethod
    def from_rows(cls, rows: Sequence[Any], dtype: Any = None) -> Ragged:
        """Joins ``rows`` (arrays or lists of numbers)."""
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        if not rows:
            return cls(np.zeros(0, dtype or np.int32), offsets)
        return cls(np.concatenate([np.asarray(row, dtype) for row in rows]), offsets)

    @classmethod
    def concatenate(cls, parts: Sequence[Ragged]) -> Ragged:
        """Joins ragged columns, in order. ``parts`` must not be empty."""
        if len(parts) == 1:
            return parts[0]
        lengths = np.concatenate([part.lengths for part in parts])
        offsets = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        return cls(np.concatenate([part.flat for part in parts]), offsets)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """int64 ``[n]``."""
        return np.diff(self.offsets)

    @property
    def flat(self) -> NDArray[Any]:
        """The rows one after another, without what lies before the first and after the last: a view."""
        return self.values[self.offsets[0] : self.offsets[-1]]

    def owned(self) -> Ragged:
        """The same in memory that nobody else has: itself if that is so already."""
        if self.values.flags.owndata:
            return self
        return Ragged(self.flat.copy(), self.offsets - self.offsets[0])

    @classmethod
    def from_spans(
        cls,
        buffers: Sequence[NDArray[Any]],
        which: NDArray[np.intp],
        begins: NDArray[np.int64],
        ends: NDArray[np.int64],
    ) -> Ragged:
        """Row ``i`` is ``buffers[which[i]][begins[i]:ends[i]]``, as a copy; neighbours are copied in one piece.

        Args:
            buffers: at least one, of one dtype.
            which: intp ``[n]``.
            begins: int64 ``[n]``.
            ends: int64 ``[n]``.
        """
        offsets = np.zeros(len(begins) + 1, np.int64)
        np.cumsum(ends - begins, out=offsets[1:])
        if not len(begins):
            return cls(buffers[0][:0].copy(), offsets)
        breaks = np.flatnonzero((begins[1:] != ends[:-1]) | (which[1:] != which[:-1]))
        first, last = np.append(0, breaks + 1), np.append(breaks, len(begins) - 1)
        runs = zip(which[first].tolist(), begins[first].tolist(), ends[last].tolist(), strict=True)
        return cls(np.concatenate([buffers[index][begin:end] for index, begin, end in runs]), offsets)

    @classmethod
    def gather(cls, parts: Sequence[Ragged], which: NDArray[np.intp], rows: NDArray[np.integer[Any]]) -> Ragged:
        """Row ``rows[i]`` of ``parts[which[i]]`` for every ``i``, as a copy.

        Args:
            parts: at least one, of one dtype.
            which: intp ``[n]``.
            rows: integers ``[n]``, not negative.
        """
        begins, ends = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
        for index, part in enumerate(parts):
            at = slice(None) if len(parts) == 1 else np.flatnonzero(which == index)
            begins[at] = part.offsets[rows[at]]
            ends[at] = part.offsets[rows[at] + 1]
        return cls.from_spans([part.values for part in parts], which, begins, ends)

    def take(self, rows: NDArray[np.integer[Any]]) -> Ragged:
        """The given rows, in the given order; negative ones count from the end."""
        rows = np.arange(len(self))[rows]
        return Ragged.gather([self], np.zeros(len(rows), np.intp), rows)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: Any) -> Any:
        """An int gives the row (a view); a slice with step 1 gives a Ragged that shares the values."""
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                raise ValueError(f"a Ragged is sliced with step 1, got {step}; use take() for other orders")
            return Ragged(self.values, self.offsets[start : max(start, stop) + 1])
        index = range(len(self))[index]
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    def __iter__(self) -> Iterator[NDArray[Any]]:
        for start, stop in zip(self.offsets[:-1].tolist(), self.offsets[1:].tolist(), strict=True):
            yield self.values[start:stop]

    def __repr__(self) -> str:
        return f"Ragged({len(self)} rows, {len(self.flat)} values, {self.values.dtype})"
