"""The protocol of a shard format."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from torchzephon.data.block import Column
from torchzephon.data.pool import Pool
from torchzephon.data.storage.store import Store, StoredFile


@dataclass(frozen=True)
class Shard:
    """A file of a dataset, or a fragment of one, with a known number of samples.

    Attributes:
        file: where it lies, with the size and modification time that it had when it was indexed.
        num_samples: rows in the shard.
        num_bytes: bytes of storage that the rows take (decompressed, where that is known): for estimates.
        part: what the format needs to find the fragment within the file (plain JSON), None for a whole file.
    """

    file: StoredFile
    num_samples: int
    num_bytes: int
    part: Any = None


class Format(Protocol):
    """One way to store samples in files. Stateless; imports its library when it is used.

    Attributes:
        name: the name that ``Dataset(format=...)`` takes.
        suffixes: file names that belong to it, with the dot, lower case.
    """

    name: str
    suffixes: tuple[str, ...]

    def index(self, file: StoredFile, store: Store) -> Sequence[Shard]:
        """Counts the samples of a file; called from threads, once per node. Raises DataError for a broken file."""
        ...

    def read(
        self, shard: Shard, rows: NDArray[np.int64], columns: Mapping[str, str] | None, store: Store, pool: Pool
    ) -> dict[str, Column]:
        """Reads rows, in the given order, as columns of that length, which may be views of what the pool keeps.

        Args:
            shard: from :meth:`index`.
            rows: int64 ``[n]``, rows of the shard, any order, repeats allowed.
            columns: new name -> stored name, to select and rename; None for all columns.
            store: how files are opened.
            pool: keeps open files and decoded parts for the lanes of this process.

        Raises:
            DataError: naming the file and the row, for data that cannot be read.
        """
        ...

    def row_bytes(
        self, shard: Shard, rows: NDArray[np.int64], columns: Mapping[str, str] | None, store: Store, pool: Pool
    ) -> NDArray[np.int64]:
        """About how many bytes each row takes in memory, int64 ``[n]``: a block is cut before it grows too large."""
        ...


@runtime_checkable
class KeepsIndex(Protocol):
    """A format whose :meth:`Format.index` must read all data, and so keeps what it finds in a file."""

    def recall(self, file: StoredFile, store: Store) -> Sequence[Shard] | None:
        """What :meth:`Format.index` would give, from the kept file; None where there is none that is current."""
        ...

    def kept_at(self, file: StoredFile, store: Store) -> str:
        """The path or URL of the kept file."""
        ...


@runtime_checkable
class DecodesParts(Protocol):
    """A format that must decode many rows to read one, and keeps them in the pool.

    Attributes:
        decoding_bytes: about how many bytes it takes to decode a shard, besides what is decoded.
    """

    decoding_bytes: int

    def decoded_bytes(self, shard: Shard, columns: Mapping[str, str] | None, store: Store, pool: Pool) -> int:
        """About how many bytes the columns of all rows of a shard take in the pool."""
        ...

    def to_decode(
        self, shard: Shard, rows: NDArray[np.int64], columns: Mapping[str, str] | None, store: Store, pool: Pool
    ) -> Sequence[Callable[[], None]]:
        """What :meth:`Format.read` of the rows would decode into the pool: functions that do it, in any thread.

        They do nothing where it was done meanwhile, or is not needed any more.
        """
        ...
