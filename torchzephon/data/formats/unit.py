"""Unit: a run of row groups, decoded piece by piece as its rows are asked for, and let go of as they were read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from torchzephon.data.background import help_out
from torchzephon.data.block import Column
from torchzephon.data.formats.columns import Decoded, UnreadableError, Where, decoded_column

if TYPE_CHECKING:
    import pyarrow as pa


DECODER = "decoder"
"""The background thread that units are decoded in ahead of time."""


class BrokenError(ValueError):
    """Rows that cannot be decoded, however often it is tried."""


class Pieces(Protocol):
    """Decodes rows piece by piece.

    Attributes:
        at_once: whether to take all of them at once.
        nbytes: bytes of memory that it takes in between.
    """

    at_once: bool
    nbytes: int

    def __iter__(self) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Itself."""
        ...

    def __next__(self) -> tuple[pa.RecordBatch, int]:
        """The rows of the next piece, at least one, and the bytes of the memory that they lie in.

        Raises:
            StopIteration: at the end.
            BrokenError: where they cannot be decoded, however often it is tried.
            Exception: what may be otherwise the next time.
        """
        ...


class _Piece(NamedTuple):
    """A piece, decoded.

    Attributes:
        columns: name -> what the piece holds of it.
        nbytes: bytes of its memory.
    """

    columns: dict[str, Any]
    nbytes: int


class Unit:
    """Rows that are decoded one after another, a piece at a time.

    A lane that reads in order so holds a piece or two of a row group and not all of it. It may be used from several
    threads: a piece is decoded once, and one that is let go of lives on where it is being picked from. Whoever is
    interrupted (Ctrl-C) may go on.

    Args:
        rows: how many there are.
        whole: whether to let go of all of them together only: for those that are known to be read more than once.

    Attributes:
        row_bytes: int64 ``[rows]``, about how many bytes each row takes, as far as they are decoded.
        broken: why the rows that are not decoded never will be; None if they can be, as far as is known.
    """

    def __init__(self, rows: int, *, whole: bool = False) -> None:
        self._whole = whole
        self._decoding = threading.Lock()
        self._coming: Pieces | None = None
        self._columns: dict[str, Decoded] = {}
        self._pieces: list[_Piece | None] = []  # None for those that were let go of
        self._bounds = [0]  # the first row of each piece, and of the next
        self._was_read = np.zeros(rows, np.bool_)
        self.row_bytes = np.zeros(rows, np.int64)
        self.broken: str | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that it takes now."""
        coming = self._coming
        return (
            sum(piece.nbytes for piece in self._pieces if piece is not None)
            + sum(column.nbytes for column in self._columns.values())
            + self._was_read.nbytes
            + self.row_bytes.nbytes
            + (0 if coming is None else coming.nbytes)
        )

    def reach(self, rows: NDArray[np.int64], decode: Callable[[int], Pieces], make_room: Callable[[], None]) -> bool:
        """Decodes as far as rows that are asked for, unless they are broken.

        Args:
            rows: int64 ``[n]``, at least one.
            decode: gives the pieces from the one of a number on. They must be the same whenever they are decoded.
            make_room: called before each piece.

        Returns:
            Whether anything was decoded.
        """
        last = int(rows.max())
        if last < self._bounds[-1] or self.broken is not None:
            return False
        help_out(DECODER, self._decoding)
        with self._decoding:
            count = len(self._bounds)
            while self.broken is None and (last >= self._bounds[-1] or (self._coming and self._coming.at_once)):
                make_room()
                self._decode_piece(decode)
            return len(self._bounds) > count

    def first_broken(self, rows: NDArray[np.int64]) -> int | None:
        """The index of the first of ``rows`` that is not decoded; None if all are."""
        beyond = np.flatnonzero(rows >= self._bounds[-1])
        return int(beyond[0]) if len(beyond) else None

    def has(self, rows: NDArray[np.int64]) -> bool:
        """Whether rows can be picked: they were decoded, and are held still."""
        if int(rows.max()) >= self._bounds[-1]:
            return False
        return all(self._pieces[index] is not None for index in np.unique(self._find(rows)).tolist())

    def pick(self, rows: NDArray[np.int64]) -> dict[str, Column] | None:
        """The columns of rows that were decoded; None where some were let go of.

        Raises:
            UnreadableError: for a value that Python cannot hold; names the column.
        """
        which = self._find(rows)
        touched = np.unique(which).tolist()
        pieces = [piece for index in touched if (piece := self._pieces[index]) is not None]
        if len(pieces) < len(touched):
            return None
        where = Where(rows, np.searchsorted(touched, which), [self._bounds[index] for index in touched])
        picked: dict[str, Column] = {}
        for name, column in self._columns.items():
            try:
                picked[name] = column.pick([piece.columns[name] for piece in pieces], where)
            except UnreadableError as error:
                raise UnreadableError(f"column {name!r}: {error}", error.row) from error
        return picked

    def mark_read(self, rows: NDArray[np.int64]) -> bool:
        """Lets go of pieces of which all rows were read: that was this epoch. Says whether that is all of the unit."""
        self._was_read[rows] = True
        if not self._whole:
            for index in np.unique(self._find(rows)).tolist():
                if self._was_read[self._bounds[index] : self._bounds[index + 1]].all():
                    self._pieces[index] = None
        return bool(self._was_read.all())

    def _find(self, rows: NDArray[np.int64]) -> NDArray[np.intp]:
        """The piece of each row."""
        return np.searchsorted(self._bounds, rows, "right") - 1

    def _decode_piece(self, decode: Callable[[int], Pieces]) -> None:
        number, start = len(self._bounds) - 1, self._bounds[-1]
        coming, self._coming = self._coming, None  # whatever goes wrong, the next one begins anew
        try:
            if coming is None:
                coming = decode(number)
            batch, nbytes = next(coming, (None, 0))
        except BrokenError as error:
            self.broken = str(error)
            return
        rows = len(self._was_read)
        stop = start if batch is None else start + batch.num_rows
        if batch is None or stop > rows:
            self.broken = f"there are {stop} rows instead of {rows}"
            return
        columns: dict[str, Any] = {}
        sizes = np.zeros(batch.num_rows, np.int64)
        for name, array in zip(batch.schema.names, batch.columns, strict=True):
            column = self._columns.setdefault(name, decoded_column(array.type, rows))
            columns[name], size = column.piece(array, start)
            sizes += size
        self.row_bytes[start:stop] = sizes
        self._pieces[number:] = [_Piece(columns, nbytes)]
        self._bounds.append(stop)  # from here on, others see it
        if stop < rows:
            self._coming = coming
