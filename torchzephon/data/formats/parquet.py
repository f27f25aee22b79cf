"""Parquet: runs of row groups as shards, decoded and let go piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchzephon.data.block import Column
from torchzephon.data.formats.base import Shard
from torchzephon.data.formats.columns import UnreadableError
from torchzephon.data.formats.parquet_file import Decoding, ParquetFooter, RowGroups, read_footer
from torchzephon.data.formats.unit import Unit
from torchzephon.data.join import join_columns
from torchzephon.data.pool import Pool
from torchzephon.data.storage.store import Store, StoredFile
from torchzephon.errors import DataError

SHARD_BYTES = 64 << 20
"""A shard is closed once it holds this many bytes. Part of what defines the order of the data: never to be changed."""


class ParquetFormat:
    """Rows of Parquet files.

    A shard is a run of consecutive row groups that hold about 64 MB before compression, so that a shuffle within
    shards has few row groups open at a time, however large the file. What is kept in the pool is a *unit*: a large row
    group, or a few small ones, with nothing but the wanted columns, decoded as far as its rows were asked for.

    Lists of numbers become :class:`~torchzephon.data.ragged.Ragged` columns; text, bytes, numbers, times, structs
    and everything else become lists of Python objects. A column is named by its name, or by a path such as
    ``"meta.lang"`` into structs.
    """

    name = "parquet"
    suffixes: tuple[str, ...] = (".parquet", ".pq")
    decoding_bytes = Decoding.nbytes

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
        shares = list(self._shares(shard, rows, columns, store, pool))
        picked = [self._pick(shard, rows, share, pool) for share in shares]
        for share, (unit, _) in zip(shares, picked, strict=True):  # when nothing can go wrong: they are read again then
            if unit.mark_read(share.rows):
                pool.discard(share.key, unit)
            else:
                pool.resize(share.key, unit, unit.nbytes)
        parts = [part for _, part in picked]
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
            sizes[share.at] = self._unit(share, pool).row_bytes[share.rows]
        return sizes

    def decoded_bytes(self, shard: Shard, columns: Mapping[str, str] | None, store: Store, pool: Pool) -> int:
        """Bytes of the columns, as the footer tells: before compression."""
        first, last = shard.part
        return self._footer(shard.file, store, pool).unit_bytes(first, last, columns)

    def to_decode(
        self, shard: Shard, rows: NDArray[np.int64], columns: Mapping[str, str] | None, store: Store, pool: Pool
    ) -> Sequence[Callable[[], None]]:
        """See :meth:`torchzephon.data.formats.base.DecodesParts.to_decode`."""
        shares = [(share, self._held(share, pool)) for share in self._shares(shard, rows, columns, store, pool)]
        return [partial(self._reach_held, share, unit, pool) for share, unit in shares if not unit.has(share.rows)]

    def _pick(self, shard: Shard, rows: NDArray[np.int64], share: _Share, pool: Pool) -> tuple[Unit, dict[str, Column]]:
        while True:
            unit = self._unit(share, pool)
            try:
                picked = unit.pick(share.rows)
            except UnreadableError as error:
                row = int(share.at[error.row])
                raise DataError(f"{shard.file.path} part {shard.part}, row {rows[row]}, {error}", row=row) from error
            if picked is not None:
                return unit, picked
            # They were read before, and another epoch has begun, or another reader: it may be so for every piece.
            share.row_groups.footer.read_again.add(share.row_groups.first)
            pool.discard(share.key, unit)

    def _unit(self, share: _Share, pool: Pool) -> Unit:
        """The unit that holds the rows, decoded as far as them. Raises DataError where they cannot be decoded."""
        unit = self._held(share, pool)
        self._reach(share, unit, pool)
        broken = unit.first_broken(share.rows)
        if broken is not None:
            groups = share.row_groups
            reason = f"row groups {groups.first} to {groups.last - 1} cannot be decoded: {unit.broken}"
            raise DataError(f"{groups.file.path}: {reason}", row=int(share.at[broken]))
        return unit

    @staticmethod
    def _held(share: _Share, pool: Pool) -> Unit:
        """The unit that holds the rows, decoded or not."""
        groups = share.row_groups

        def load() -> tuple[Unit, int]:
            unit = Unit(groups.num_rows, whole=groups.first in groups.footer.read_again)
            return unit, unit.nbytes

        return pool.get(share.key, load)

    @staticmethod
    def _reach(share: _Share, unit: Unit, pool: Pool) -> None:
        groups = share.row_groups
        if unit.reach(share.rows, groups.decode, lambda: pool.make_room(groups.piece_bytes, but=share.key)):
            pool.resize(share.key, unit, unit.nbytes)

    def _reach_held(self, share: _Share, unit: Unit, pool: Pool) -> None:
        if pool.peek(share.key) is unit:  # else it was read meanwhile, or there was no room for it
            self._reach(share, unit, pool)

    def _shares(
        self, shard: Shard, rows: NDArray[np.int64], columns: Mapping[str, str] | None, store: Store, pool: Pool
    ) -> Iterator[_Share]:
        """The rows, by the units that hold them."""
        footer = self._footer(shard.file, store, pool)
        bounds = footer.units(*shard.part)
        for index, at, in_unit in _split(rows + footer.starts[shard.part[0]], footer.starts[bounds]):
            first, last = int(bounds[index]), int(bounds[index + 1])
            key = self.name, shard.file.key, (first, last), None if columns is None else tuple(columns.items())
            yield _Share(key, RowGroups(shard.file, footer, first, last, columns, store), at, in_unit)

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
        row_groups: the unit's.
        at: intp ``[n]``, where they stand among the rows that were asked for.
        rows: int64 ``[n]``, which rows of the unit they are.
    """

    key: Hashable
    row_groups: RowGroups
    at: NDArray[np.intp]
    rows: NDArray[np.int64]


def _split(
    rows: NDArray[np.int64], starts: NDArray[np.int64]
) -> Iterator[tuple[int, NDArray[np.intp], NDArray[np.int64]]]:
    """Finds rows in parts that begin at ``starts``.

    Yields:
        For each part that holds some: its index, where they stand in ``rows``, and their numbers within the part.
    """
    if not len(rows):
        return
    first = int(starts.searchsorted(rows.min(), "right")) - 1
    last = int(starts.searchsorted(rows.max(), "right")) - 1
    if first == last:
        yield first, np.arange(len(rows)), rows - starts[first]
        return
    parts = starts.searchsorted(rows, "right") - 1
    for part in range(first, last + 1):
        at = np.flatnonzero(parts == part)
        if len(at):
            yield part, at, rows[at] - starts[part]
