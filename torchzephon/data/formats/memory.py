"""Samples that are in memory already."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from torchzephon.data.block import Column
from torchzephon.data.formats.base import Shard
from torchzephon.data.formats.rows import to_columns
from torchzephon.data.pool import Pool
from torchzephon.data.storage.store import Store, StoredFile


class MemoryFormat:
    """The format of ``Dataset.from_samples``: one shard, which it holds itself.

    Args:
        samples: sample dicts with text keys; not copied.

    Raises:
        TypeError: for something that is not a list of dicts with text keys.
    """

    name = "memory"
    suffixes: tuple[str, ...] = ()

    def __init__(self, samples: Sequence[Mapping[str, Any]]) -> None:
        if not isinstance(samples, Sequence):
            raise TypeError(f"samples must be a list of dicts, got {type(samples).__name__}")
        for row, sample in enumerate(samples):
            if not isinstance(sample, Mapping) or not all(isinstance(name, str) for name in sample):
                raise TypeError(f"sample {row} must be a dict with text keys, got {sample!r:.100}")
        self.samples = samples

    def digest(self) -> str:
        """A digest of the contents, the same in every process; objects that JSON does not know count by their type."""
        digest = hashlib.blake2b(digest_size=16)
        for sample in self.samples:
            try:
                written = orjson.dumps(dict(sample), default=_stand_in, option=orjson.OPT_SERIALIZE_NUMPY)
            except TypeError:  # large integers, lone surrogates, keys that are not text
                written = json.dumps(dict(sample), default=_stand_in, skipkeys=True).encode()
            digest.update(written)
            digest.update(b"\n")
        return digest.hexdigest()

    def index(self, file: StoredFile, store: Store) -> Sequence[Shard]:
        """One shard with all samples."""
        return [Shard(file, len(self.samples), sum(map(_text_bytes, self.samples)))]

    def read(
        self, shard: Shard, rows: NDArray[np.int64], columns: Mapping[str, str] | None, store: Store, pool: Pool
    ) -> dict[str, Column]:
        """The rows as lists of the very objects that were given."""
        return to_columns([self.samples[row] for row in rows.tolist()], columns)

    def row_bytes(
        self, shard: Shard, rows: NDArray[np.int64], columns: Mapping[str, str] | None, store: Store, pool: Pool
    ) -> NDArray[np.int64]:
        """About the bytes of each row, int64 ``[n]``."""
        return np.array([_text_bytes(self.samples[row]) for row in rows.tolist()], np.int64)


def _text_bytes(sample: Mapping[str, Any]) -> int:
    """About the bytes of a sample: a byte a character, four a list's item (which is a token most of the time)."""
    sizes = ((len(value), value) for value in sample.values() if hasattr(value, "__len__"))
    return sum(size if isinstance(value, (str, bytes)) else 4 * size for size, value in sizes)


def _stand_in(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray)):
        return value.hex()
    if isinstance(value, np.ndarray):
        return value.tolist()
    return dict(value) if isinstance(value, Mapping) else type(value).__qualname__
