"""Parquet: fragments of row groups as shards, decoded a run of row groups at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from torchzephon.data.block import Column
from torchzephon.data.formats.arrow import Chunk, UnreadableError, pick
from torchzephon.data.formats.base import Shard
from torchzephon.data.formats.parquet_file import ParquetFooter, Unit, decode, read_footer
from torchzephon.data.pool import Pool
from torchzephon.data.storage.store import Store, StoredFile
from torchzephon.errors import DataError

SHARD_BYTES = 64 << 20
"""A shard is closed once it holds this many bytes. Part of what defines the order of the data: never to be changed."""


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
        footer = read_footer(file, store)
        shards: list[Shard] = []
        first = size = 0
        for group, group_size in enumerate(footer.sizes):
            size += group_size
            if size >= SHARD_BYTES or group == len(footer.sizes) - 1:
                rows = int(footer.starts[group + 1] - footer.starts[first])
                shards.append(Shard(file, rows, size, [first, group + 1]))
                first, size = group + 1, 0
        return shards

    def read(
        self, shard: Shard, rows: NDArray[np.int64], columns: Mapping[str, str] | None, store: Store, pool: Pool
    ) -> dict[str, Column]:
        """Reads rows, see :meth:`torchzephon.data.formats.base.Format.read`."""
        chunks, which, local = self._find(shard, rows, columns, store, pool)
        if not chunks:
            return {}
        picked: dict[str, Column] = {}
        for name in chunks[0].columns:
            try:
                picked[name] = pick([chunk.columns[name] for chunk in chunks], which, local)
            except UnreadableError as error:
                raise DataError(
                    f"{shard.file.path} part {shard.part}, row {rows[error.row]}, column {name!r}: {error}",
                    row=error.row,
                ) from error
        return picked

    def row_bytes(
        self, shard: Shard, rows: NDArray[np.int64], columns: Mapping[str, str] | None, store: Store, pool: Pool
    ) -> NDArray[np.int64]:
        """The bytes of text and lists in each row, int64 ``[n]``; of other columns, the mean."""
        chunks, which, local = self._find(shard, rows, columns, store, pool)
        sizes = np.empty(len(rows), np.int64)
        for index, chunk in enumerate(chunks):
            at = np.flatnonzero(which == index)
            sizes[at] = chunk.row_bytes[local[at]]
        return sizes

    def _find(
        self, shard: Shard, rows: NDArray[np.int64], columns: Mapping[str, str] | None, store: Store, pool: Pool
    ) -> tuple[list[Chunk], NDArray[np.intp], NDArray[np.int64]]:
        """The decoded chunks that hold the rows, and for each row which chunk, and which row of it."""
        footer = self._footer(shard.file, store, pool)
        wanted = None if columns is None else tuple(columns.items())
        bounds = footer.units(*shard.part)
        chunks: list[Chunk] = []
        which, local = np.empty(len(rows), np.intp), np.empty(len(rows), np.int64)
        for unit, at, in_unit in _split(rows + footer.starts[shard.part[0]], footer.starts[bounds]):
            first, last = int(bounds[unit]), int(bounds[unit + 1])
            key = (self.name, shard.file.key, first, last, wanted)
            decoded = pool.get(key, partial(_load_unit, shard.file, footer, first, last, columns, store, pool))
            if isinstance(decoded, str):
                raise DataError(decoded, row=int(at[0]))
            for chunk, at_in_unit, in_chunk in _split(in_unit, decoded.starts):
                which[at[at_in_unit]] = len(chunks)
                local[at[at_in_unit]] = in_chunk
                chunks.append(decoded.chunks[chunk])
        return chunks, which, local

    def _footer(self, file: StoredFile, store: Store, pool: Pool) -> ParquetFooter:
        def load() -> tuple[ParquetFooter, int]:
            store.check(file)
            footer = read_footer(file, store)
            return footer, footer.nbytes

        return pool.get((self.name, file.key), load)


def _load_unit(
    file: StoredFile,
    footer: ParquetFooter,
    first: int,
    last: int,
    columns: Mapping[str, str] | None,
    store: Store,
    pool: Pool,
) -> tuple[Unit | str, int]:
    pool.make_room(footer.unit_bytes(first, last, columns))
    return decode(file, footer, first, last, columns, store)


def _split(
    rows: NDArray[np.int64], starts: NDArray[np.int64]
) -> Iterator[tuple[int, NDArray[np.intp], NDArray[np.int64]]]:
    """Finds rows in parts that begin at ``starts``.

    Yields:
        For each part that holds some: its index, where they stand in ``rows``, and their numbers within the part.
    """
    if not len(rows):
        return
    parts = np.searchsorted(starts, rows, "right") - 1
    for part in range(int(parts.min()), int(parts.max()) + 1):
        at = np.flatnonzero(parts == part)
        if len(at):
            yield part, at, rows[at] - starts[part]
