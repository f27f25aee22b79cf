"""Decoded columns, which come in pieces, and how the columns of blocks are picked from them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchzephon.data.block import Column
from torchzephon.data.ragged import Ragged

if TYPE_CHECKING:
    import pyarrow as pa


class UnreadableError(ValueError):
    """A value that Python cannot hold.

    Attributes:
        row: index into the rows that were asked for.
    """

    def __init__(self, reason: str, row: int) -> None:
        super().__init__(reason)
        self.row = row


class Where(NamedTuple):
    """Rows that are asked for, and the pieces that hold them.

    Attributes:
        rows: int64 ``[n]``, their numbers in the column.
        which: intp ``[n]``, index into the pieces.
        starts: the first row of each piece.
    """

    rows: NDArray[np.int64]
    which: NDArray[np.intp]
    starts: Sequence[int]


class Decoded(ABC):
    """A column of a known number of rows, without what its pieces hold of it.

    Attributes:
        nbytes: bytes that it takes.
    """

    nbytes: int = 0

    @abstractmethod
    def piece(self, array: pa.Array, start: int) -> tuple[Any, NDArray[np.int64] | int]:
        """What the piece that begins at a row is to hold of the column, and about how many bytes each row takes.

        It may be called again for the same piece.
        """

    @abstractmethod
    def pick(self, pieces: Sequence[Any], where: Where) -> Column:
        """The rows, from what :meth:`piece` gave. Raises UnreadableError for a value that Python cannot hold."""


def decoded_column(kind: pa.DataType, rows: int) -> Decoded:
    """Text as :class:`Texts`, lists of numbers as :class:`Lists`; anything else as it is."""
    import pyarrow as pa

    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return Texts(rows)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        of = kind.value_type
        if pa.types.is_integer(of) or pa.types.is_floating(of) or pa.types.is_boolean(of):
            return Lists(rows)
    return Objects()


class Objects(Decoded):
    """Any column: Python objects. A piece holds the array."""

    def piece(self, array: pa.Array, start: int) -> tuple[pa.Array, int]:
        """See :class:`Decoded`; the bytes are the mean."""
        return array, array.nbytes // max(1, len(array))

    def pick(self, pieces: Sequence[pa.Array], where: Where) -> list[Any]:
        """The given rows as Python objects: None for null, a dict for a struct."""
        column = np.empty(len(where.rows), object)
        for index, (array, start) in enumerate(zip(pieces, where.starts, strict=True)):
            at = np.flatnonzero(where.which == index)
            values = array.take(where.rows[at] - start)
            try:
                objects = values.to_pylist()
            except (ValueError, OverflowError):
                objects = [_object(value, int(row)) for value, row in zip(values, at, strict=True)]
            for row, value in zip(at.tolist(), objects, strict=True):
                column[row] = value
        return column.tolist()  # type: ignore[no-any-return]


class Spans(Decoded):
    """A column whose rows are spans of one buffer in each piece: text, bytes, or lists of numbers.

    Args:
        rows: how many there are.
    """

    def __init__(self, rows: int) -> None:
        self._begins = np.zeros(rows, np.int64)
        self._ends = np.zeros(rows, np.int64)
        self._valid: NDArray[np.bool_] | None = None  # which rows are not null; None where all are
        self.nbytes = self._begins.nbytes + self._ends.nbytes

    def _note(self, array: pa.Array, offsets: NDArray[np.int64], start: int) -> NDArray[np.int64]:
        """Notes where the rows of a piece lie in its buffer. Returns their lengths."""
        rows = slice(start, start + len(array))
        self._begins[rows], self._ends[rows] = offsets[:-1], offsets[1:]
        if array.null_count:
            if self._valid is None:
                self._valid = np.ones(len(self._begins), np.bool_)
                self.nbytes += self._valid.nbytes
            self._valid[rows] = array.is_valid().to_numpy(zero_copy_only=False)
        return offsets[1:] - offsets[:-1]


class _Numbers(NamedTuple):
    """What a piece holds of lists of numbers.

    Attributes:
        values: all numbers, one after another; None where some are null.
        array: the lists.
    """

    values: NDArray[Any] | None
    array: pa.Array


class Lists(Spans):
    """Lists of numbers."""

    def piece(self, array: pa.Array, start: int) -> tuple[_Numbers, NDArray[np.int64]]:
        """See :class:`Decoded`."""
        lengths = self._note(array, _list_offsets(array), start)
        values = None if array.flatten().null_count else _numbers(array.values)
        width = array.type.value_type.bit_width // 8 or 1
        return _Numbers(values, array), lengths * width

    def pick(self, pieces: Sequence[_Numbers], where: Where) -> Column:
        """A Ragged, a view where the rows lie one after another in a piece; lists where a list or a number is null."""
        buffers = [piece.values for piece in pieces if piece.values is not None]
        if len(buffers) < len(pieces):
            return Objects().pick([piece.array for piece in pieces], where)
        rows, which = where.rows, where.which
        begins, ends = self._begins[rows], self._ends[rows]
        if self._valid is None or self._valid[rows].all():
            if len(buffers) == 1 and (begins[1:] == ends[:-1]).all():
                return Ragged(buffers[0][begins[0] : ends[-1]], np.append(begins, ends[-1]) - begins[0])
            return Ragged.from_spans(buffers, which, begins, ends)
        spans = zip(which.tolist(), begins.tolist(), ends.tolist(), self._valid[rows].tolist(), strict=True)
        return [buffers[index][begin:end].copy() if valid else None for index, begin, end, valid in spans]


class Texts(Spans):
    """Text. A piece holds a buffer of UTF-8."""

    def piece(self, array: pa.Array, start: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """See :class:`Decoded`."""
        lengths = self._note(array, _text_offsets(array), start)
        data = array.buffers()[2]
        return (np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)), lengths

    def pick(self, pieces: Sequence[NDArray[np.uint8]], where: Where) -> list[Any]:
        """The given rows, None for null."""
        rows = where.rows
        texts: list[str | None] = []
        views = [memoryview(buffer) for buffer in pieces]  # type: ignore[arg-type]
        spans = zip(where.which.tolist(), self._begins[rows].tolist(), self._ends[rows].tolist(), strict=True)
        try:
            for index, begin, end in spans:
                texts.append(str(views[index][begin:end], "utf-8"))
        except UnicodeDecodeError as error:
            raise UnreadableError(str(error), len(texts)) from error
        if self._valid is not None:
            for row in np.flatnonzero(~self._valid[rows]).tolist():
                texts[row] = None
        return texts


def _list_offsets(array: pa.Array) -> NDArray[np.int64]:
    """int64 ``[n + 1]``, where each list begins and the last one ends in ``array.values``."""
    import pyarrow as pa

    if pa.types.is_fixed_size_list(array.type):
        size: int = array.type.list_size
        every: NDArray[np.int64] = np.arange(array.offset, array.offset + len(array) + 1)
        return every * size
    offsets: NDArray[Any] = array.offsets.to_numpy()
    return offsets.astype(np.int64)


def _numbers(values: pa.Array) -> NDArray[Any]:
    """Sharing the memory, but for bools, and where a list of a fixed size is null: those take room."""
    if values.null_count:
        values = values.fill_null(values.type.to_pandas_dtype()())
    numbers: NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return numbers


def _text_offsets(array: pa.Array) -> NDArray[np.int64]:
    """int64 ``[n + 1]``, where each text begins and the last one ends in the buffer."""
    import pyarrow as pa

    if not len(array):
        return np.zeros(1, np.int64)
    width = np.int64 if pa.types.is_large_string(array.type) else np.int32
    offsets: NDArray[Any] = np.frombuffer(array.buffers()[1], width)
    return offsets[array.offset : array.offset + len(array) + 1].astype(np.int64)


def _object(value: pa.Scalar, row: int) -> Any:
    try:
        return value.as_py()
    except (ValueError, OverflowError) as error:
        raise UnreadableError(str(error), row) from error
