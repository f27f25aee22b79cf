"""Decoded Arrow rows, and how blocks' columns are picked from them."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torchzephon.data.block import Column
from torchzephon.data.formats.mappings import lease
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


class Decoded(ABC):
    """A decoded column.

    Attributes:
        nbytes: bytes that it holds besides its Arrow arrays.
    """

    nbytes: int = 0

    @abstractmethod
    def pick(self, rows: NDArray[np.int64]) -> Column:
        """The given rows. Raises UnreadableError for a value that Python cannot hold."""


class Objects(Decoded):
    """Any column: a list of Python objects.

    Args:
        arrays: the column in pieces, at least one.
    """

    def __init__(self, arrays: Sequence[pa.Array]) -> None:
        self._arrays = arrays
        self._starts = np.cumsum([0, *map(len, arrays[:-1])])

    def pick(self, rows: NDArray[np.int64]) -> list[Any]:
        """The given rows as Python objects: None for null, a dict for a struct."""
        column = np.empty(len(rows), object)
        which = np.searchsorted(self._starts, rows, "right") - 1
        for piece in np.unique(which).tolist():
            at = np.flatnonzero(which == piece)
            values = self._arrays[piece].take(rows[at] - self._starts[piece])
            try:
                objects = values.to_pylist()
            except (ValueError, OverflowError):
                objects = [_object(value, int(row)) for value, row in zip(values, at, strict=True)]
            for index, value in zip(at.tolist(), objects, strict=True):
                column[index] = value
        return column.tolist()  # type: ignore[no-any-return]


class Spans(Decoded):
    """A column whose rows are spans of a few buffers: text, bytes, or lists of numbers.

    Args:
        buffers: one for each piece of the column, at least one.
        offsets: int64, where the rows of each piece begin and end in its buffer.
        valid: bool, for each piece which rows are not null; None where all are valid.
    """

    def __init__(
        self,
        buffers: Sequence[NDArray[Any]],
        offsets: Sequence[NDArray[np.int64]],
        valid: Sequence[NDArray[np.bool_] | None],
    ) -> None:
        self._buffers = buffers
        self._begins = np.concatenate([piece[:-1] for piece in offsets])
        self._ends = np.concatenate([piece[1:] for piece in offsets])
        self._starts = np.cumsum([0, *(len(piece) - 1 for piece in offsets[:-1])])
        self._valid: NDArray[np.bool_] | None = None
        if any(piece is not None for piece in valid):
            filled = (
                np.ones(len(piece) - 1, np.bool_) if mask is None else mask
                for piece, mask in zip(offsets, valid, strict=True)
            )
            self._valid = np.concatenate(list(filled))
        self.nbytes = self._begins.nbytes * 2 + (0 if self._valid is None else self._valid.nbytes)

    @property
    def row_bytes(self) -> NDArray[np.int64]:
        """int64 ``[n]``, bytes of each row."""
        lengths: NDArray[np.int64] = self._ends - self._begins
        return lengths * self._buffers[0].itemsize

    def _spans(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.int64], NDArray[np.int64]]:
        return np.searchsorted(self._starts, rows, "right") - 1, self._begins[rows], self._ends[rows]


class Lists(Spans):
    """Lists of numbers."""

    def pick(self, rows: NDArray[np.int64]) -> Column:
        """The given rows as a Ragged copy; where one is null, as a list of arrays and None."""
        if self._valid is None or self._valid[rows].all():
            return Ragged.from_spans(self._buffers, *self._spans(rows))
        spans = zip(*(part.tolist() for part in self._spans(rows)), self._valid[rows].tolist(), strict=True)
        return [self._buffers[which][begin:end].copy() if valid else None for which, begin, end, valid in spans]


class Texts(Spans):
    """Text: buffers of UTF-8."""

    def pick(self, rows: NDArray[np.int64]) -> list[Any]:
        """The given rows, None for null."""
        texts: list[str | None] = []
        views = [memoryview(buffer) for buffer in self._buffers]  # type: ignore[arg-type]
        spans = zip(*(part.tolist() for part in self._spans(rows)), strict=True)
        try:
            for which, begin, end in spans:
                texts.append(str(views[which][begin:end], "utf-8"))
        except UnicodeDecodeError as error:
            raise UnreadableError(str(error), len(texts)) from error
        if self._valid is not None:
            for row in np.flatnonzero(~self._valid[rows]).tolist():
                texts[row] = None
        return texts


class Unit:
    """Decoded rows.

    Args:
        batches: the rows, each batch from :func:`compact`; at least one.

    Attributes:
        columns: name -> column.
        row_bytes: int64 ``[n]``, about how many bytes each row takes.
        nbytes: bytes that the unit holds, without what the batches do.
    """

    def __init__(self, batches: Sequence[pa.RecordBatch]) -> None:
        self.columns: dict[str, Decoded] = {}
        self._unread: int = sum(batch.num_rows for batch in batches)
        self._counting = threading.Lock()
        self.row_bytes = np.zeros(self._unread, np.int64)
        for index, name in enumerate(batches[0].schema.names):
            arrays = [batch.column(index) for batch in batches]
            column = self.columns[name] = _decode(arrays)
            if isinstance(column, Spans):
                self.row_bytes += column.row_bytes
            else:
                self.row_bytes += sum(array.nbytes for array in arrays) // max(1, len(self.row_bytes))
        self.nbytes = self.row_bytes.nbytes + sum(column.nbytes for column in self.columns.values())

    def was_read(self, rows: int) -> bool:
        """Counts rows that were read: whether all were, as long as none is read twice: that was this epoch."""
        with self._counting:
            self._unread -= rows
            return self._unread <= 0


def compact(batch: pa.RecordBatch, columns: Mapping[str, tuple[str, ...]]) -> tuple[pa.RecordBatch, int]:
    """Copies columns into a mapping of their own, of the right size, that the system takes back when it is let go.

    Arrow's buffers grow by doubling and its allocator keeps what is freed: half as much again as is held.

    Args:
        batch: the rows.
        columns: new name -> path to the column: its name, then names of struct fields.

    Returns:
        The columns by their new names, and the bytes of the mapping.
    """
    import pyarrow as pa

    arrays = [_plain(_follow(batch, path)) for path in columns.values()]
    batch = pa.RecordBatch.from_arrays(arrays, list(columns))

    def write(sink: pa.NativeFile) -> None:
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)

    counter = pa.MockOutputStream()
    write(counter)
    memory, kept = lease(counter.size())
    write(pa.FixedSizeBufferWriter(memory))
    return pa.ipc.open_stream(kept).read_next_batch(), kept.size


def _follow(batch: pa.RecordBatch, path: tuple[str, ...]) -> pa.Array:
    import pyarrow.compute as pc

    array = batch.column(path[0])
    return pc.struct_field(array, list(path[1:])) if len(path) > 1 else array


def _plain(array: pa.Array) -> pa.Array:
    """Views as the arrays that they are views of, dictionaries of text as text: what rows can be taken from."""
    import pyarrow as pa

    kind = array.type
    if pa.types.is_dictionary(kind):
        return _plain(array.dictionary_decode())
    if str(kind) in ("string_view", "binary_view"):
        return array.cast(pa.large_string() if str(kind) == "string_view" else pa.large_binary())
    return array


def _decode(arrays: Sequence[pa.Array]) -> Decoded:
    """Text as :class:`Texts`, lists of numbers as :class:`Lists`, sharing the memory; anything else as it is."""
    import pyarrow as pa

    kind = arrays[0].type
    valid = [array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None for array in arrays]
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        width = np.int64 if pa.types.is_large_string(kind) else np.int32
        return Texts([_data(array) for array in arrays], [_offsets(array, width) for array in arrays], valid)
    if pa.types.is_fixed_size_list(kind):
        size = kind.list_size
        offsets = [np.arange(len(array) + 1, dtype=np.int64) * size + array.offset * size for array in arrays]
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        offsets = [array.offsets.to_numpy().astype(np.int64) for array in arrays]
    else:
        return Objects(arrays)
    of = kind.value_type
    numbers = pa.types.is_integer(of) or pa.types.is_floating(of) or pa.types.is_boolean(of)
    if not numbers or any(array.flatten().null_count for array in arrays):
        return Objects(arrays)
    return Lists([_numbers(array.values) for array in arrays], offsets, valid)


def _numbers(values: pa.Array) -> NDArray[Any]:
    """Sharing the memory, but for bools, and where a list of a fixed size is null: those take room."""
    if values.null_count:
        values = values.fill_null(values.type.to_pandas_dtype()())
    numbers: NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return numbers


def _data(array: pa.Array) -> NDArray[np.uint8]:
    data = array.buffers()[2]
    return np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)


def _offsets(array: pa.Array, width: type[np.signedinteger[Any]]) -> NDArray[np.int64]:
    if not len(array):
        return np.zeros(1, np.int64)
    offsets: NDArray[Any] = np.frombuffer(array.buffers()[1], width)
    return offsets[array.offset : array.offset + len(array) + 1].astype(np.int64)


def _object(value: pa.Scalar, row: int) -> Any:
    try:
        return value.as_py()
    except (ValueError, OverflowError) as error:
        raise UnreadableError(str(error), row) from error
