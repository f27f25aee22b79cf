"""Parquet: fragments of row groups as shards, decoded a run of row groups at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torchzephon.data.block import Column
from torchzephon.data.formats.arrow import Chunk, pick
from torchzephon.data.formats.base import Shard
from torchzephon.data.pool import Pool
from torchzephon.data.storage.store import Store, StoredFile
from torchzephon.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

SHARD_BYTES = 64 << 20
"""A shard is closed once it holds this many bytes. Part of what defines the order of the data: never to be changed."""

UNIT_BYTES = 4 << 20
"""Row groups smaller than this are decoded together: fewer calls, and still cheap to read a single row."""

CHUNK_BYTES = 4 << 20
"""Row groups are decoded in pieces of about this size: for a moment, Arrow takes twice the size of what it decodes."""


class ParquetFormat:
    """Rows of Parquet files.

    A shard is a run of consecutive row groups that hold about 64 MB before compression, so that a shuffle within
    shards has few row groups open at a time, however large the file. What is decoded and kept in the pool is a *unit*:
    a large row group, or a few small ones, with nothing but the wanted columns.

    Lists of numbers become :class:`~torchzephon.data.ragged.Ragged` columns; text, bytes, numbers, times, structs
    and everything else become lists of Python objects. A column is named by its name, or by a path such as
    ``"meta.lang"`` into structs.
    """

    name = "parquet"
    suffixes: tuple[str, ...] = (".parquet", ".pq")

    def index(self, file: StoredFile, store: Store) -> Sequence[Shard]:
        """Reads the footer. Raises DataError for a file that is no Parquet file, or a broken one."""
        metadata = _read_metadata(file, store)
        shards: list[Shard] = []
        first = rows = size = 0
        for group in range(metadata.num_row_groups):
            row_group = metadata.row_group(group)
            rows += row_group.num_rows
            size += row_group.total_byte_size
            if size >= SHARD_BYTES or group == metadata.num_row_groups - 1:
                if rows:
                    shards.append(Shard(file, rows, size, [first, group + 1]))
                first, rows, size = group + 1, 0, 0
        return shards

    def read(
        self, shard: Shard, rows: NDArray[np.int64], columns: Mapping[str, str] | None, store: Store, pool: Pool
    ) -> dict[str, Column]:
        """Reads rows, see :meth:`torchzephon.data.formats.base.Format.read`."""
        names, chunks, which, local = self._find(shard, rows, columns, store, pool)
        return {name: pick([chunk.columns[name] for chunk in chunks], which, local) for name in names}

    def row_bytes(
        self, shard: Shard, rows: NDArray[np.int64], columns: Mapping[str, str] | None, store: Store, pool: Pool
    ) -> NDArray[np.int64]:
        """The bytes of text and lists in each row, int64 ``[n]``; of other columns, the mean."""
        _, chunks, which, local = self._find(shard, rows, columns, store, pool)
        sizes = np.empty(len(rows), np.int64)
        for index, chunk in enumerate(chunks):
            at = np.flatnonzero(which == index)
            sizes[at] = chunk.row_bytes[local[at]]
        return sizes

    def _find(
        self, shard: Shard, rows: NDArray[np.int64], columns: Mapping[str, str] | None, store: Store, pool: Pool
    ) -> tuple[list[str], list[Chunk], NDArray[np.intp], NDArray[np.int64]]:
        """The names of the columns, the decoded chunks that hold the rows, and for each row its chunk and row there."""
        footer = pool.get((self.name, "footer", shard.file.key), lambda: _load_footer(shard.file, store))
        paths = footer.paths(columns, shard.file)
        bounds = footer.units(*shard.part)
        in_file = rows + footer.starts[shard.part[0]]
        unit_of = np.searchsorted(footer.starts[bounds], in_file, "right") - 1
        chunks: list[Chunk] = []
        which, local = np.empty(len(rows), np.intp), np.empty(len(rows), np.int64)
        for unit in np.unique(unit_of).tolist():
            at = np.flatnonzero(unit_of == unit)
            first, last = int(bounds[unit]), int(bounds[unit + 1])
            decoded = pool.get(
                (self.name, first, last, shard.file.key, tuple(paths.items())),
                partial(footer.decode, first, last, paths, shard.file, store),
            )
            if isinstance(decoded, str):
                raise DataError(decoded, row=int(at[0]))
            in_unit = in_file[at] - footer.starts[first]
            chunk_of = np.searchsorted(decoded.starts, in_unit, "right") - 1
            used, which_used = np.unique(chunk_of, return_inverse=True)
            which[at] = which_used + len(chunks)
            local[at] = in_unit - decoded.starts[chunk_of]
            chunks += [decoded.chunks[chunk] for chunk in used]
        return list(paths), chunks, which, local


@dataclass(frozen=True)
class _Unit:
    """Decoded row groups.

    Attributes:
        chunks: the rows.
        starts: int64 ``[number of chunks]``, the first row of each within the unit.
    """

    chunks: Sequence[Chunk]
    starts: NDArray[np.int64]


@dataclass
class _Footer:
    """What a file's footer tells.

    Attributes:
        metadata: the footer.
        schema: the columns, as Arrow types.
        starts: int64 ``[row groups + 1]``, the first row of each within the file.
    """

    metadata: pq.FileMetaData
    schema: pa.Schema
    starts: NDArray[np.int64]
    _units: dict[tuple[int, int], NDArray[np.intp]] = field(default_factory=dict)

    def units(self, first: int, last: int) -> NDArray[np.intp]:
        """The row groups where the units of the shard ``[first, last)`` begin, and where the last one ends."""
        bounds = self._units.get((first, last))
        if bounds is None:
            begins, size = [first], 0
            for group in range(first, last):
                if size >= UNIT_BYTES:
                    begins.append(group)
                    size = 0
                size += self.metadata.row_group(group).total_byte_size
            bounds = self._units[first, last] = np.array([*begins, last], np.intp)
        return bounds

    def paths(self, columns: Mapping[str, str] | None, file: StoredFile) -> dict[str, tuple[str, ...]]:
        """Looks the wanted columns up: new name -> name, then names of struct fields."""
        if columns is None:
            columns = {name: name for name in self.schema.names}
        return {name: self._path(stored, file) for name, stored in columns.items()}

    def _path(self, stored: str, file: StoredFile) -> tuple[str, ...]:
        import pyarrow as pa

        count = self.schema.names.count(stored)
        if count > 1:
            raise DataError(f"{file.path}: {count} columns are named {stored!r}; select others with columns=")
        if count == 1:
            return (stored,)
        path = tuple(stored.split("."))
        fields: Any = self.schema
        for name in path:
            index = fields.get_field_index(name) if isinstance(fields, (pa.Schema, pa.StructType)) else -1
            if index < 0:
                has = ", ".join(map(repr, self.schema.names))
                raise DataError(f"{file.path}: no column {stored!r}; it has {has}")
            fields = fields.field(index)
            fields = fields.type
        return path

    def decode(
        self, first: int, last: int, paths: Mapping[str, tuple[str, ...]], file: StoredFile, store: Store
    ) -> tuple[_Unit | str, int]:
        """Reads the row groups ``first`` to ``last``.

        Returns:
            The unit, or for broken data the message, so that it is not read again for every row; and its bytes.
        """
        import pyarrow as pa

        rows = int(self.starts[last] - self.starts[first])
        groups = range(first, last)
        size = sum(self.metadata.row_group(group).total_byte_size for group in groups)
        chunks: list[Chunk] = []
        store.check(file)
        try:
            with _opened(file, store, self.metadata) as reader:
                batches = reader.iter_batches(
                    max(1, rows * CHUNK_BYTES // max(size, 1)),
                    row_groups=groups,
                    columns=[".".join(path) for path in paths.values()],
                    use_threads=False,  # the lanes' threads read at once, each its own unit
                )
                chunks.extend(Chunk(batch, paths) for batch in batches)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            store.check(file)
            return f"{file.path}: row groups {first} to {last - 1} cannot be decoded: {error}", 0
        finally:
            # Arrow keeps the buffers of what was evicted for itself, several times the pool's bound otherwise.
            pa.default_memory_pool().release_unused()
        starts = np.cumsum([0, *map(len, chunks)])
        if starts[-1] != rows:
            return f"{file.path}: row groups {first} to {last - 1} hold {starts[-1]} rows instead of {rows}", 0
        return _Unit(chunks, starts[:-1]), sum(chunk.nbytes for chunk in chunks)


def _load_footer(file: StoredFile, store: Store) -> tuple[_Footer, int]:
    store.check(file)
    metadata = _read_metadata(file, store)
    starts = np.zeros(metadata.num_row_groups + 1, np.int64)
    np.cumsum([metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)], out=starts[1:])
    # In memory a footer takes several times its bytes in the file.
    return _Footer(metadata, metadata.schema.to_arrow_schema(), starts), 4 * metadata.serialized_size + starts.nbytes


def _read_metadata(file: StoredFile, store: Store) -> pq.FileMetaData:
    import pyarrow as pa

    try:
        with _opened(file, store) as reader:
            return reader.metadata
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{file.path} is not a Parquet file, or it is broken or cut off: {error}") from error


@contextmanager
def _opened(file: StoredFile, store: Store, metadata: pq.FileMetaData | None = None) -> Iterator[pq.ParquetFile]:
    """Opens a file: a local one without a memory map, whose pages would count as this process's memory."""
    import pyarrow.parquet as pq

    if file.is_local:
        with pq.ParquetFile(file.path, metadata=metadata, buffer_size=1 << 20, pre_buffer=False) as reader:
            yield reader
    else:
        with store.open(file) as handle, pq.ParquetFile(handle, metadata=metadata, pre_buffer=True) as reader:
            yield reader
