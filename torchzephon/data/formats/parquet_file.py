"""One Parquet file: its footer, and runs of its row groups, decoded piece by piece."""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torchzephon.data.formats.arrow import compact
from torchzephon.data.formats.unit import BrokenError
from torchzephon.data.storage.store import Store, StoredFile
from torchzephon.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

UNIT_BYTES = 4 << 20
"""Row groups smaller than this are decoded together: fewer calls, and still cheap to read a single row."""

PIECE_BYTES = 1 << 20
"""Units are decoded in pieces of about this size, before decoding: what a lane that reads in order holds."""

_ATTEMPTS = 3


@dataclass
class ParquetFooter:
    """What a file's footer tells.

    Attributes:
        metadata: the footer.
        schema: the columns, as Arrow types.
        starts: int64 ``[row groups + 1]``, the first row of each within the file.
        sizes: bytes of each row group before compression.
        in_ranges: whether parts of the file can be read; else a copy is, HTTP servers need not serve parts.
        read_again: the first row groups of units of which rows were asked for again while others had not been read yet.
    """

    metadata: pq.FileMetaData
    schema: pa.Schema
    starts: NDArray[np.int64]
    sizes: Sequence[int]
    in_ranges: bool
    read_again: set[int] = field(default_factory=set)
    _units: dict[tuple[int, int], NDArray[np.intp]] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """About how many bytes of memory it takes: several times its bytes in the file."""
        return 4 * int(self.metadata.serialized_size)

    def units(self, first: int, last: int) -> NDArray[np.intp]:
        """The row groups where the units of the shard ``[first, last)`` begin, and where the last one ends."""
        bounds = self._units.get((first, last))
        if bounds is None:
            begins, size = [first], 0
            for group in range(first, last):
                if size >= UNIT_BYTES:
                    begins.append(group)
                    size = 0
                size += self.sizes[group]
            bounds = self._units[first, last] = np.array([*begins, last], np.intp)
        return bounds

    def unit_bytes(self, first: int, last: int, columns: Mapping[str, str] | None) -> int:
        """About how many bytes the columns of the row groups ``[first, last)`` take when they are decoded."""
        leaves: Sequence[int] = range(self.metadata.num_columns)
        if columns is not None:
            wanted = tuple(f"{stored}." for stored in columns.values())
            paths = [f"{self.metadata.schema.column(leaf).path}." for leaf in leaves]
            leaves = [leaf for leaf in leaves if paths[leaf].startswith(wanted)]
        groups = [self.metadata.row_group(group) for group in range(first, last)]
        return sum(group.column(leaf).total_uncompressed_size for group in groups for leaf in leaves)

    def paths(self, columns: Mapping[str, str] | None, file: StoredFile) -> dict[str, tuple[str, ...]]:
        """Looks columns up.

        Args:
            columns: new name -> name, or names of a struct and its fields joined by dots; None for all columns.
            file: for messages.

        Returns:
            New name -> name of a column, then names of fields.

        Raises:
            DataError: for a column that is not there, or is there twice.
        """
        if columns is None:
            columns = {name: name for name in self.schema.names}
        return {name: self._path(stored, file) for name, stored in columns.items()}

    def _path(self, stored: str, file: StoredFile) -> tuple[str, ...]:
        import pyarrow as pa

        count = self.schema.names.count(stored)
        if count > 1:
            raise DataError(f"{file.path}: {count} columns are named {stored!r}; read others, with columns=[...]")
        if count == 1:
            return (stored,)
        path = tuple(stored.split("."))
        fields: Any = self.schema
        for name in path:
            index = fields.get_field_index(name) if isinstance(fields, (pa.Schema, pa.StructType)) else -1
            if index < 0:
                has = ", ".join(map(repr, self.schema.names))
                raise DataError(f"{file.path}: no column {stored!r}; it has {has}")
            fields = fields.field(index).type
        return path


def read_footer(file: StoredFile, store: Store) -> ParquetFooter:
    """Reads the footer of a file.

    Raises:
        DataError: for a file that is no Parquet file, or a broken one, or cannot be read.
    """
    in_ranges = True
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            with _opened(file, store, in_ranges=in_ranges) as reader:
                metadata = reader.metadata
            break
        except DataError:
            raise
        except Exception as error:
            if _is_broken(error):
                raise DataError(f"{file.path} is not a Parquet file, or it is broken or cut off: {error}") from error
            if in_ranges and isinstance(error, ValueError):  # how fsspec tells that a server does not serve parts
                in_ranges = False
                continue
            _try_again(file, attempt, error)
    sizes = [metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups)]
    starts = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum([metadata.row_group(group).num_rows for group in range(len(sizes))], out=starts[1:])
    return ParquetFooter(metadata, metadata.schema.to_arrow_schema(), starts, sizes, in_ranges)


@dataclass(frozen=True)
class RowGroups:
    """A run of row groups, and what is read of them.

    Attributes:
        file: the file that they are in.
        footer: its footer.
        first: the first of them.
        last: the one after the last.
        columns: new name -> stored name; None for all columns.
        store: how files are opened.
    """

    file: StoredFile
    footer: ParquetFooter
    first: int
    last: int
    columns: Mapping[str, str] | None
    store: Store

    @property
    def num_rows(self) -> int:
        """Rows in all of them."""
        return int(self.footer.starts[self.last] - self.footer.starts[self.first])

    @property
    def piece_bytes(self) -> int:
        """About how many bytes a piece takes when it is decoded."""
        return self._bytes // self._num_pieces

    @property
    def _num_pieces(self) -> int:
        return max(1, round(self._bytes / PIECE_BYTES))

    @functools.cached_property
    def _bytes(self) -> int:
        return self.footer.unit_bytes(self.first, self.last, self.columns)

    def decode(self, piece: int) -> Decoding:
        """Decodes them from the piece of a number on."""
        return Decoding(self, piece)

    def batches(self, piece: int) -> Iterator[tuple[pa.RecordBatch, int]]:
        """What :meth:`decode` gives, one after another. The file is open from the first one to the last."""
        paths = self.footer.paths(self.columns, self.file)
        attempt = 1
        while True:
            self.store.check(self.file)
            try:
                with _opened(self.file, self.store, self.footer.metadata, in_ranges=self.footer.in_ranges) as reader:
                    batches = reader.iter_batches(
                        max(1, -(-self.num_rows // self._num_pieces)),  # alike, so that their memory is used again
                        row_groups=range(self.first, self.last),
                        columns=[".".join(path) for path in paths.values()],
                        use_threads=False,  # lanes that are driven by threads decode at once, each its own unit
                    )
                    for number, batch in enumerate(batch for batch in batches if batch.num_rows):
                        if number >= piece:
                            yield compact(batch, paths)
                            piece += 1
                            self.store.check(self.file)
                return
            except DataError:
                raise
            except Exception as error:
                if _is_broken(error):
                    raise BrokenError(str(error)) from error
                _try_again(self.file, attempt, error)
                attempt += 1


class Decoding:
    """Row groups that are being decoded: see :class:`~torchzephon.data.formats.unit.Pieces`.

    A local file stays open in between, as long as not too many are. Others are read at once.

    Args:
        row_groups: which.
        piece: the number of the piece to begin with.
    """

    nbytes = 4 << 20  # about: compressed and decompressed pages, dictionaries, levels
    _slot: int | None = None  # should the constructor be interrupted

    def __init__(self, row_groups: RowGroups, piece: int) -> None:
        self._slot = _take_slot() if row_groups.file.is_local else None
        self.at_once = self._slot is None
        self._batches = row_groups.batches(piece)

    def __iter__(self) -> Decoding:
        return self

    def __next__(self) -> tuple[pa.RecordBatch, int]:
        """See :class:`~torchzephon.data.formats.unit.Pieces`.

        Raises:
            DataError: for a file that is gone, has changed, or cannot be read just now, and for a column it does not
                have.
        """
        return next(self._batches)

    def __del__(self) -> None:  # anywhere, in any thread: it must not wait for a lock
        if self._slot is not None:
            _slots.append(self._slot)


_slots = deque(range(64))  # files that may stay open


def _take_slot() -> int | None:
    try:
        return _slots.pop()
    except IndexError:
        return None


def _is_broken(error: Exception) -> bool:
    """Whether Arrow says that the data is broken: with errors of its own, or with an OSError that has no number."""
    import pyarrow as pa

    if isinstance(error, MemoryError):  # one of Arrow's own, too
        return False
    return isinstance(error, pa.ArrowException) or (type(error) is OSError and error.errno is None)


def _try_again(file: StoredFile, attempt: int, error: Exception) -> None:
    """Waits a little: networks fail for a moment, and every fsspec storage has errors of its own for it."""
    if file.is_local or attempt == _ATTEMPTS:
        raise DataError(f"{file.path} cannot be read: {error}") from error
    time.sleep(attempt)


@contextmanager
def _opened(
    file: StoredFile, store: Store, metadata: pq.FileMetaData | None = None, *, in_ranges: bool
) -> Iterator[pq.ParquetFile]:
    """Opens a file: what is local without a memory map, whose pages would count as memory of this process."""
    import pyarrow.parquet as pq

    if file.is_local:
        with pq.ParquetFile(file.path, metadata=metadata, buffer_size=1 << 18, pre_buffer=False) as reader:
            yield reader
    elif in_ranges:
        with store.open(file) as handle, pq.ParquetFile(handle, metadata=metadata, pre_buffer=True) as reader:
            yield reader
    else:
        with store.open_local(file) as handle, pq.ParquetFile(handle, metadata=metadata, pre_buffer=False) as reader:
            yield reader
