"""JSON lines: one object a line, plain or compressed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import orjson
from numpy.typing import NDArray

from torchzephon.data.block import Column
from torchzephon.data.formats.base import Shard
from torchzephon.data.formats.compression import CODECS, broken, decompressor
from torchzephon.data.formats.lines import LineIndex, find_index, index_path, make_index
from torchzephon.data.formats.rows import to_columns
from torchzephon.data.pool import Pool
from torchzephon.data.storage.places import node_lock
from torchzephon.data.storage.store import Store, StoredFile, changed
from torchzephon.errors import DataError

_GAP = 32 << 10
"""Records closer than this are read in one go: copying so much takes as long as another system call."""

_MOST_OPEN = 512
"""Open files that fill a pool, however large it is: descriptors are scarce where memory is not."""

_EXCERPT = 60


class JsonlFormat:
    """Text files with a JSON object a line: ``.jsonl``, ``.ndjson``, ``.json``, each plain, ``.gz`` or ``.zst``.

    A byte order mark, CRLF, blank lines and a missing last newline are fine. Everything else must be strict JSON in
    UTF-8; of duplicate keys the last wins; integers beyond 64 bits become floats. Where the records begin is found
    once and kept in an index file. A compressed file is decompressed once per machine, and a remote file fetched
    once, into the shard cache.

    Rows are read with ``pread`` rather than through a mapping: copying costs about a tenth of the parsing, a file
    that shrinks gives an error and not a SIGBUS, and the process does not grow with the pages it has seen.
    """

    name = "jsonl"
    suffixes: tuple[str, ...] = tuple(
        stem + codec for stem in (".jsonl", ".ndjson", ".json") for codec in ("", *CODECS)
    )

    def recall(self, file: StoredFile, store: Store) -> Sequence[Shard] | None:
        """The shard as the kept index tells, None where there is none that is current."""
        index = find_index(file, store)
        return None if index is None else [_shard(file, index)]

    def kept_at(self, file: StoredFile, store: Store) -> str:
        """Where the index of a file lies."""
        return index_path(file, store)

    def index(self, file: StoredFile, store: Store) -> Sequence[Shard]:
        """Finds the lines of a file and keeps where they begin."""
        return [_shard(file, _scan(file, store))]

    def read(
        self, shard: Shard, rows: NDArray[np.int64], columns: Mapping[str, str] | None, store: Store, pool: Pool
    ) -> dict[str, Column]:
        """Reads rows as lists of Python objects; a field that only some rows have is ``MISSING`` in the others.

        Raises:
            DataError: for a line that is not a JSON object (with its row) and for a file that has changed.
        """
        samples = _Opened.of(shard, store, pool).parse(rows)
        return to_columns(samples, columns)

    def row_bytes(
        self, shard: Shard, rows: NDArray[np.int64], columns: Mapping[str, str] | None, store: Store, pool: Pool
    ) -> NDArray[np.int64]:
        """Bytes of each line, int64 ``[n]``."""
        starts = _Opened.of(shard, store, pool).index.starts
        return starts[rows + 1].astype(np.int64) - starts[rows].astype(np.int64)


@dataclass(frozen=True)
class _Opened:
    """A file that can be read at any row: kept in the pool, closed when the last reference goes."""

    file: StoredFile
    index: LineIndex
    stream: BinaryIO
    is_copy: bool

    @classmethod
    def of(cls, shard: Shard, store: Store, pool: Pool) -> _Opened:
        def load() -> tuple[_Opened, int]:
            opened = cls.open(shard, store)
            return opened, max(opened.index.nbytes, pool.memory_bytes // _MOST_OPEN)

        return pool.get(("jsonl", *shard.file.key), load)

    @classmethod
    def open(cls, shard: Shard, store: Store) -> _Opened:
        file = shard.file
        index = find_index(file, store)
        if index is None:
            with node_lock(file.path):
                index = find_index(file, store)
                if index is None:
                    index = _scan(file, store)
        if len(index) != shard.num_samples:
            raise changed(file, file.size)
        convert = _convert(file)
        stream = store.open_local(file, index.end, convert)
        return cls(file, index, stream, is_copy=convert is not None or not file.is_local)

    def __del__(self) -> None:
        self.stream.close()

    def parse(self, rows: NDArray[np.int64]) -> list[Any]:
        """Parses rows, in the order given."""
        if not len(rows):
            return []
        if not self.is_copy:  # copies appear whole and are never written again
            self.check()
        starts = self.index.starts
        order = None
        if len(rows) > 1 and (rows[1:] < rows[:-1]).any():
            order = np.argsort(rows, kind="stable")
            rows = rows[order]
        first, last = starts[rows].astype(np.int64), starts[rows + 1].astype(np.int64)
        cuts = (np.flatnonzero(first[1:] > last[:-1] + _GAP) + 1).tolist()
        begins, ends = first.tolist(), last.tolist()
        samples: list[Any] = []
        loads = orjson.loads
        try:
            for low, high in zip([0, *cuts], [*cuts, len(rows)], strict=True):
                base = begins[low]
                view = memoryview(self.pread(ends[high - 1] - base, base))
                for begin, end in zip(begins[low:high], ends[low:high], strict=True):
                    samples.append(loads(view[begin - base : end - base]))
        except orjson.JSONDecodeError as error:
            reason = f"not JSON in UTF-8 ({error.msg.split(': line ')[0]}, column {error.colno})"
            raise self.bad_row(rows, order, len(samples), reason) from None
        if set(map(type, samples)) != {dict}:
            at = next(i for i, sample in enumerate(samples) if type(sample) is not dict)
            raise self.bad_row(rows, order, at, "not a JSON object")
        if order is None:
            return samples
        back = np.empty(len(order), np.intp)
        back[order] = np.arange(len(order))
        return [samples[i] for i in back.tolist()]

    def check(self) -> None:
        """Looks whether the open file is still as it was indexed."""
        status = os.fstat(self.stream.fileno())
        if status.st_size != self.file.size or self.file.version != f"local:{status.st_mtime_ns}":
            raise changed(self.file, status.st_size)

    def pread(self, length: int, offset: int) -> bytes:
        """Bytes of the open file, however many system calls it takes."""
        data = b""
        while len(data) < length:
            try:
                more = os.pread(self.stream.fileno(), length - len(data), offset + len(data))
            except OSError as error:
                raise DataError(f"{self.file.path} cannot be read: {error}") from error
            if not more:
                raise changed(self.file, offset + len(data))
            data = data + more if data else more
        return data

    def bad_row(self, rows: NDArray[np.int64], order: NDArray[np.intp] | None, at: int, reason: str) -> DataError:
        """The error for one bad line."""
        row = int(rows[at])
        begin, end = int(self.index.starts[row]), int(self.index.starts[row + 1])
        line = self.pread(min(end - begin, 4 * _EXCERPT), begin).decode(errors="backslashreplace").strip()
        excerpt = line if len(line) <= _EXCERPT else line[:_EXCERPT] + "..."
        way_out = 'repair the file, or let Reader(on_error="skip") pass over such lines'
        if self.pread(1, int(self.index.starts[0])) == b"[":
            way_out = "the file begins like one JSON array: write its objects one a line, for example with jq -c '.[]'"
        return DataError(
            f"{self.file.path}, line {self.index.line_number(row)}: {reason}: {excerpt!r}; {way_out}",
            row=at if order is None else int(order[at]),
        )


def _shard(file: StoredFile, index: LineIndex) -> Shard:
    return Shard(file, len(index), index.end)


def _scan(file: StoredFile, store: Store) -> LineIndex:
    return make_index(store.chunks(file, _convert(file)), file, store)


def _convert(file: StoredFile) -> Callable[[BinaryIO], BinaryIO] | None:
    for suffix, codec in CODECS.items():
        if file.name.lower().endswith(suffix):
            if not file.size:
                raise broken(file.path, codec, "no bytes at all")
            return decompressor(file.path, codec)
    return None
