"""Dataset: a name for a set of shards."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shlex
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from torchzephon.data.block import Column
from torchzephon.data.formats.base import DecodesParts, Format, Shard
from torchzephon.data.formats.memory import MemoryFormat
from torchzephon.data.formats.registry import format_of_files, format_of_name
from torchzephon.data.pool import Pool
from torchzephon.data.shard_table import find_shards
from torchzephon.data.storage.listing import list_files
from torchzephon.data.storage.store import Store, StoredFile, is_local, local_path
from torchzephon.errors import DataError


class Dataset:
    """Names samples in files. Making one reads nothing: files are listed and indexed when ``shards`` is first used.

    It can be pickled, with its shards once they are known, shared by threads, and is its own deep copy.

    Args:
        name: what weights, states and messages call it.
        path: a directory (searched recursively), a glob, a file, an fsspec URL of one of these, or a list of them.
            Shards come in natural order, ``shard-2`` before ``shard-10``, the entries of a list one after another.
            A file listed twice is refused.
        format: ``"jsonl"``, ``"parquet"``; None tells it by the names of the files, which must all have one format.
        columns: fields to read, ``{new name: stored name}`` or a list of names; None for all. A stored name may be a
            path into structs and objects, such as ``"doc.meta.lang"``.
        storage_options: passed to fsspec, such as ``{"anon": True}``.

    Attributes:
        name: as given.
        columns: new name -> stored name, or None.
        store: how its files are opened.

    Raises:
        TypeError: for an argument of another type.
        ValueError: for an empty name, path or columns, or an unknown format.
    """

    def __init__(
        self,
        name: str,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        format: str | None = None,  # noqa: A002 - the word that users know
        columns: Mapping[str, str] | Sequence[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._begin(name, _checked_columns(columns), Store(storage_options))
        self._paths = _checked_paths(path)
        self._format = None if format is None else format_of_name(format)

    @classmethod
    def from_samples(cls, name: str, samples: Sequence[Mapping[str, Any]]) -> Dataset:
        """A dataset of sample dicts in memory, as one shard. They are not copied and must not change.

        Raises:
            TypeError: for something that is not a list of dicts with text keys.
        """
        dataset = cls.__new__(cls)
        dataset._begin(name, None, Store())
        dataset._paths = []
        dataset._format = MemoryFormat(samples)
        return dataset

    def _begin(self, name: str, columns: dict[str, str] | None, store: Store) -> None:
        if not isinstance(name, str):
            raise TypeError(f"a dataset's name must be a text, got {name!r}")
        if not name:
            raise ValueError("a dataset's name must not be empty")
        self.name = name
        self.columns = columns
        self.store = store
        self._shards: tuple[Shard, ...] | None = None
        self._digest: str | None = None
        self._locks: dict[int, threading.Lock] = {}

    @property
    def shards(self) -> Sequence[Shard]:
        """The shards that hold samples; the first use lists the files and makes or reads their index.

        Raises:
            DataError: when nothing matches the path, formats are unknown or mixed, or a file is broken.
        """
        if self._shards is None:
            # A lock of this process: after a fork, the parent's may be held by a thread that is not here.
            with self._locks.setdefault(os.getpid(), threading.Lock()):
                if self._shards is None:
                    self._shards = tuple(shard for shard in self._find() if shard.num_samples)
        return self._shards

    @property
    def format(self) -> Format:
        """How its files are read."""
        if self._format is None:
            _ = self.shards
        assert self._format is not None
        return self._format

    @property
    def num_samples(self) -> int:
        """Samples in all shards."""
        return sum(shard.num_samples for shard in self.shards)

    @property
    def num_bytes(self) -> int:
        """Bytes of storage that the samples take, decompressed where known: for estimates."""
        return sum(shard.num_bytes for shard in self.shards)

    @property
    def digest(self) -> str:
        """16 hexadecimal digits, of the names of the shards within the dataset and of their sizes.

        It is the same wherever the dataset lies, and differs (as good as surely) where samples would. Of samples in
        memory it is of their contents.
        """
        if self._digest is None:
            if isinstance(self._format, MemoryFormat):
                parts: list[Any] = [self.num_samples, self._format.digest()]
            else:
                parts = [[shard.file.name, shard.file.size, shard.num_samples, shard.part] for shard in self.shards]
            self._digest = hashlib.blake2b(orjson.dumps([self.format.name, parts]), digest_size=8).hexdigest()
        return self._digest

    def read(self, shard: int, rows: NDArray[np.int64], store: Store, pool: Pool) -> dict[str, Column]:
        """Reads rows of a shard, in the given order, as columns of that length, which are not to be changed.

        Args:
            shard: index into ``shards``.
            rows: int64 ``[n]``, any order, repeats allowed.
            store: ``self.store``, or one with another shard cache.
            pool: keeps open files and decoded parts.

        Raises:
            DataError: for data that cannot be read; its ``row`` tells which of ``rows`` is to blame, if one is.
        """
        with self._naming_itself():
            return self.format.read(self.shards[shard], rows, self.columns, store, pool)

    def row_bytes(self, shard: int, rows: NDArray[np.int64], store: Store, pool: Pool) -> NDArray[np.int64]:
        """About how many bytes each row takes in memory, int64 ``[n]``; arguments and errors as of :meth:`read`."""
        with self._naming_itself():
            return self.format.row_bytes(self.shards[shard], rows, self.columns, store, pool)

    def to_decode(self, shard: int, rows: NDArray[np.int64], store: Store, pool: Pool) -> Sequence[Callable[[], None]]:
        """What :meth:`read` would decode, see :meth:`torchzephon.data.formats.base.DecodesParts.to_decode`."""
        decoder = self._decoder
        return () if decoder is None else decoder.to_decode(self.shards[shard], rows, self.columns, store, pool)

    @functools.cached_property
    def _decoder(self) -> DecodesParts | None:
        """The format, if it is one that decodes parts: to ask it so takes longer than what it answers then."""
        return self.format if isinstance(self.format, DecodesParts) else None

    def locate(self, shard: int, row: int) -> str:
        """``"dataset 'web', /data/web/shard-003.jsonl, row 17"``, for messages. Rows count from 0."""
        found = self.shards[shard]
        part = "" if found.part is None else f" part {found.part}"
        return f"dataset {self.name!r}, {found.file.path}{part}, row {row}"

    def _find(self) -> Sequence[Shard]:
        if isinstance(self._format, MemoryFormat):
            return self._format.index(StoredFile("in memory", 0), self.store)
        with self._naming_itself():
            files = list_files(self._paths, self.store)
            data_format = self._format or format_of_files(file.name for file in files)
            shards = find_shards(files, data_format, self.store, self.name, shlex.join(self._paths))
        self._format = data_format
        return shards

    @contextlib.contextmanager
    def _naming_itself(self) -> Iterator[None]:
        """Puts the dataset's name before the messages of errors."""
        try:
            yield
        except DataError as error:
            raise DataError(f"dataset {self.name!r}: {error}", row=error.row) from error

    def __deepcopy__(self, memo: dict[int, Any]) -> Dataset:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_locks": {}}

    def __repr__(self) -> str:
        return f"Dataset({self.name!r}, {self._paths[0] if len(self._paths) == 1 else self._paths!r})"


def _checked_paths(path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    entries = [path] if isinstance(path, (str, os.PathLike)) else path
    if not isinstance(entries, Sequence) or not all(isinstance(entry, (str, os.PathLike)) for entry in entries):
        raise TypeError(f"path must be a directory, glob, file, URL or a list of these, got {path!r:.200}")
    paths = [os.fspath(entry) for entry in entries]
    if not paths or not all(paths):
        raise ValueError(f"path must not be empty, got {path!r:.200}")
    # Absolute from now on: the working directory may differ in a worker, or later.
    return [local_path(entry) if is_local(entry) else entry for entry in paths]


def _checked_columns(columns: Mapping[str, str] | Sequence[str] | None) -> dict[str, str] | None:
    if columns is None:
        return None
    if isinstance(columns, str):
        raise TypeError(f"columns must be a list or a dict of names; write [{columns!r}] for one column")
    checked = dict(columns) if isinstance(columns, Mapping) else {name: name for name in columns}
    if not all(isinstance(name, str) for pair in checked.items() for name in pair):
        raise TypeError(f"columns must map text to text, new name to stored name, got {columns!r}")
    if not checked:
        raise ValueError("columns must not be empty; None reads all fields")
    return checked
