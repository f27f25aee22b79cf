"""Parquet: fragments of row groups as shards, decoded a run of row groups at a time."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchzephon.data.block import Column
from torchzephon.data.formats.arrow import Unit, UnreadableError
from torchzephon.data.formats.base import Shard
from torchzephon.data.formats.parquet_file import ParquetFooter, decode, read_footer
from torchzephon.data.join import join_columns
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
        shares = self._shares(shard, rows, columns, store, pool)
        parts = [self._pick(shard, rows, share) for share in shares]
        for share in shares:
            if share.unit.was_read(len(share.at)):
                pool.discard(share.key)
        if len(parts) < 2:
            return parts[0] if parts else {}
        which, place = np.empty(len(rows), np.intp), np.empty(len(rows), np.intp)
        for index, share in enumerate(shares):
            which[share.at] = index
            place[share.at] = np.arange(len(share.at))
        return join_columns(parts, which, place)

    def row_bytes(
        self, shard: Shard, rows: NDArray[np.int64], columns: Mapping[str, str] | None, store: Store, pool: Pool
    ) -> NDArray[np.int64]:
        """The bytes of text and lists in each row, int64 ``[n]``; of other columns, the mean."""
        sizes = np.empty(len(rows), np.int64)
        for share in self._shares(shard, rows, columns, store, pool):
            sizes[share.at] = share.unit.row_bytes[share.rows]
        return sizes

    def decoded_bytes(self, shard: Shard, columns: Mapping[str, str] | None, store: Store, pool: Pool) -> int:
        """Bytes of the columns, as the footer tells: before compression."""
        first, last = shard.part
        return self._footer(shard.file, store, pool).unit_bytes(first, last, columns)

    @staticmethod
    def _pick(shard: Shard, rows: NDArray[np.int64], share: _Share) -> dict[str, Column]:
        picked: dict[str, Column] = {}
        for name, column in share.unit.columns.items():
            try:
                picked[name] = column.pick(share.rows)
            except UnreadableError as error:
                row = int(share.at[error.row])
                raise DataError(
                    f"{shard.file.path} part {shard.part}, row {rows[row]}, column {name!r}: {error}", row=row
                ) from error
        return picked

    def is_decoded(
        self, shard: Shard, rows: NDArray[np.int64], columns: Mapping[str, str] | None, store: Store, pool: Pool
    ) -> bool:
        """Whether the units of the rows are in the pool, or on their way there."""
        footer = self._footer(shard.file, store, pool)
        return all(self._key(shard, unit, columns) in pool for unit, _, _ in self._in_units(shard, rows, footer))

    def _shares(
        self, shard: Shard, rows: NDArray[np.int64], columns: Mapping[str, str] | None, store: Store, pool: Pool
    ) -> list[_Share]:
        """The decoded units that hold the rows."""
        footer = self._footer(shard.file, store, pool)
        shares = []
        for (first, last), at, in_unit in self._in_units(shard, rows, footer):
            key = self._key(shard, (first, last), columns)
            unit = pool.get(key, partial(_load_unit, shard.file, footer, first, last, columns, store, pool))
            if isinstance(unit, str):
                raise DataError(unit, row=int(at[0]))
            shares.append(_Share(key, unit, at, in_unit))
        return shares

    @staticmethod
    def _in_units(
        shard: Shard, rows: NDArray[np.int64], footer: ParquetFooter
    ) -> Iterator[tuple[tuple[int, int], NDArray[np.intp], NDArray[np.int64]]]:
        """Each unit's row groups, where its rows stand in ``rows``, and their numbers within the unit."""
        bounds = footer.units(*shard.part)
        for index, at, in_unit in _split(rows + footer.starts[shard.part[0]], footer.starts[bounds]):
            yield (int(bounds[index]), int(bounds[index + 1])), at, in_unit

    def _key(self, shard: Shard, unit: tuple[int, int], columns: Mapping[str, str] | None) -> Hashable:
        return self.name, shard.file.key, unit, None if columns is None else tuple(columns.items())

    def _footer(self, file: StoredFile, store: Store, pool: Pool) -> ParquetFooter:
        def load() -> tuple[ParquetFooter, int]:
            store.check(file)
            footer = read_footer(file, store)
            return footer, footer.nbytes

        return pool.get((self.name, file.key), load)


class _Share(NamedTuple):
    """Rows that lie in one unit.

    Attributes:
        key: the unit's, in the pool.
        unit: decoded.
        at: intp ``[n]``, where they stand among the rows that were asked for.
        rows: int64 ``[n]``, which rows of the unit they are.
    """

    key: Hashable
    unit: Unit
    at: NDArray[np.intp]
    rows: NDArray[np.int64]


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
    first, last = np.searchsorted(starts, [rows.min(), rows.max()], "right") - 1
    if first == last:
        yield int(first), np.arange(len(rows)), rows - starts[first]
        return
    parts = np.searchsorted(starts, rows, "right") - 1
    for part in range(int(first), int(last) + 1):
        at = np.flatnonzero(parts == part)
        if len(at):
            yield part, at, rows[at] - starts[part]
