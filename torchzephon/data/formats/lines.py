"""The line index of a text file: where each record begins, found once and kept in a file.

An index file is one line of JSON, padded with spaces to a multiple of 64 bytes, and then two arrays of little-endian
integers: where the records begin (and where the last one ends), and the numbers of the blank lines.
"""

from __future__ import annotations

import logging
import mmap
import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from torchzephon.data.storage.places import atomic_file, cache_root, short_hash
from torchzephon.data.storage.store import INDEX_SUFFIX, Store, StoredFile, beside
from torchzephon.errors import DataError

logger = logging.getLogger(__name__)

_VERSION = 1
_IN_MEMORY = 4 << 20  # bytes of index that are read rather than mapped: a mapping holds a file descriptor
_WIDE = 2**32  # bytes of text whose offsets no longer fit into 32 bits
_BLANK = b" \t\r\n"


@dataclass(frozen=True)
class LineIndex:
    """Where the records of a text file begin.

    Attributes:
        starts: uint32 or uint64 ``[n + 1]``, byte offsets: record ``i`` lies in ``[starts[i], starts[i + 1])``, with
            the newline and any blank lines that follow it, all of it white space to JSON. The last is the file's end.
        blanks: uint64 ``[m]``, the numbers of the blank lines, from 0.
    """

    starts: NDArray[np.unsignedinteger[Any]]
    blanks: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def end(self) -> int:
        """Bytes of the whole text, decompressed."""
        return int(self.starts[-1])

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.starts.nbytes + self.blanks.nbytes

    def line_number(self, record: int) -> int:
        """The line of a record as editors count, from 1."""
        records_before = self.blanks.astype(np.int64) - np.arange(len(self.blanks))
        return record + 1 + int(np.searchsorted(records_before, record, side="right"))


def scan(chunks: Iterable[bytes], path: str = "") -> LineIndex:
    """Finds the records of a text: its lines without the blank ones and without a byte order mark.

    Args:
        chunks: the text in pieces, cut anywhere, the first at least as long as a byte order mark.
        path: for messages.

    Raises:
        DataError: for UTF-16.
    """
    starts: list[NDArray[np.int64]] = []
    blanks: list[NDArray[np.int64]] = []
    position = lines = line_start = 0
    blank = True  # whether the line that goes on from the last chunk has been white space so far
    for number, chunk in enumerate(chunks):
        skip = 0
        if number == 0:
            if chunk.startswith((b"\xff\xfe", b"\xfe\xff")):
                raise DataError(f"{path} is UTF-16 text, JSON lines are UTF-8: convert it, for example with iconv")
            skip = line_start = 3 if chunk.startswith(b"\xef\xbb\xbf") else 0
        data = np.frombuffer(chunk, np.uint8)
        newlines = np.flatnonzero(data == 10)
        if not len(newlines):
            blank = blank and _is_blank(chunk[skip:])
            position += len(chunk)
            continue
        begins = np.empty(len(newlines), np.int64)
        begins[0] = line_start - position
        begins[1:] = newlines[:-1] + 1
        kept = np.ones(len(newlines), bool)
        kept[0] = not (blank and _is_blank(chunk[skip : newlines[0]]))
        for line in (np.flatnonzero(data[begins[1:]] <= 32) + 1).tolist():  # may be blank: white space comes first
            kept[line] = not _is_blank(chunk[begins[line] : newlines[line]])
        starts.append(begins[kept] + position)
        if not kept.all():
            blanks.append(np.flatnonzero(~kept) + lines)
        lines += len(newlines)
        rest = int(newlines[-1]) + 1
        line_start = position + rest
        blank = _is_blank(chunk[rest:])
        position += len(chunk)
    if not blank:
        starts.append(np.array([line_start]))
    starts.append(np.array([position]))
    return LineIndex(
        np.concatenate(starts).astype("<u4" if position < _WIDE else "<u8"),
        np.concatenate(blanks).astype("<u8") if blanks else np.zeros(0, "<u8"),
    )


def _is_blank(line: bytes) -> bool:
    return not line.strip(_BLANK)


def find_index(file: StoredFile, store: Store) -> LineIndex | None:
    """The kept index of a file: from beside it, else from the cache directory. None where none is current."""
    cached = _cached_path(file)
    if file.is_local:
        found = _load(beside(file.path, INDEX_SUFFIX), file)
        return _load(cached, file) if found is None else found
    # One that is in the cache only is not enough for a store that publishes.
    found = None if store.publish else _load(cached, file)
    if found is None and (published := store.read_beside(file, INDEX_SUFFIX)) is not None:
        _write(cached, [published])
        found = _load(cached, file)
    return found


def index_path(file: StoredFile, store: Store) -> str:
    """Where the kept index of a file lies, or would be looked for last."""
    path = beside(file.path, INDEX_SUFFIX)
    return path if (os.path.exists(path) if file.is_local else store.publish) else _cached_path(file)


def make_index(chunks: Iterable[bytes], file: StoredFile, store: Store) -> LineIndex:
    """Scans a file and keeps its index: beside it where that can be written, else in the cache directory.

    Args:
        chunks: the decompressed contents of the file.
        file: the file.
        store: where it is.

    Raises:
        DataError: when the file changes meanwhile, and what ``chunks`` raises.
    """
    index = scan(chunks, file.path)
    store.check(file)
    payload = [index.starts.tobytes(), index.blanks.tobytes()]
    header = orjson.dumps(
        {
            "torchzephon_index": _VERSION,
            "size": file.size,
            "version": file.version,
            "records": len(index),
            "blanks": len(index.blanks),
            "width": index.starts.itemsize,
            "crc32": zlib.crc32(payload[1], zlib.crc32(payload[0])),
        }
    )
    header += b" " * (-(len(header) + 1) % 64) + b"\n"
    path = store.write_beside(file, INDEX_SUFFIX, [header, *payload])
    if path is None or not file.is_local:
        path = _cached_path(file)
        _write(path, [header, *payload])
    return _load(path, file) or index


def _cached_path(file: StoredFile) -> str:
    name = f"{short_hash(file.path)[:16]}-{file.path.rsplit('/', 1)[-1][-100:]}{INDEX_SUFFIX}"
    return os.path.join(cache_root(), "indexes", name)


def _write(path: str, chunks: Iterable[bytes]) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with atomic_file(path) as out:
        out.writelines(chunks)


def _load(path: str, file: StoredFile) -> LineIndex | None:
    try:
        with open(path, "rb") as stored:
            head = stored.readline(4096)
            try:
                index = _parse(head, stored.fileno(), file)
            except (ValueError, KeyError, TypeError) as error:
                logger.warning("the index %s is damaged (%s) and is made anew", path, error)
                return None
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    if index is None:
        logger.info("the index %s is not of the file as it is now and is made anew", path)
    return index


def _parse(head: bytes, descriptor: int, file: StoredFile) -> LineIndex | None:
    fields = orjson.loads(head)
    if fields["torchzephon_index"] != _VERSION or not file.is_as(fields["size"], fields["version"]):
        return None
    records, blanks, width = fields["records"], fields["blanks"], fields["width"]
    length = (records + 1) * width + blanks * 8
    if os.fstat(descriptor).st_size != len(head) + length:
        raise ValueError("it has the wrong length")
    data: bytes | mmap.mmap
    if length <= _IN_MEMORY:
        data = os.pread(descriptor, len(head) + length, 0)
    else:
        data = mmap.mmap(descriptor, len(head) + length, access=mmap.ACCESS_READ)
    with memoryview(data) as view:
        if zlib.crc32(view[len(head) :]) != fields["crc32"]:
            raise ValueError("its checksum differs")
    starts: NDArray[np.unsignedinteger[Any]] = np.frombuffer(data, f"<u{width}", records + 1, len(head))
    return LineIndex(starts, np.frombuffer(data, "<u8", blanks, len(head) + (records + 1) * width))
