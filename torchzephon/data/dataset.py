"""Dataset: a name for a set of shards. Placeholder: the data room's author completes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchzephon.data.formats.base import Shard


class Dataset:
    """Placeholder."""

    name: str

    @property
    def shards(self) -> Sequence[Shard]:
        """The shards in natural order; the first call makes or reads the index."""
        raise NotImplementedError

    @property
    def num_samples(self) -> int:
        """Samples in all shards."""
        raise NotImplementedError

    @property
    def num_bytes(self) -> int:
        """Bytes of storage that the samples take, decompressed where known: for estimates."""
        raise NotImplementedError

    @property
    def digest(self) -> str:
        """A digest of shard names and sizes, not of their location: goes into the graph description."""
        raise NotImplementedError

    def locate(self, shard: int, row: int) -> str:
        """``"dataset 'web', /data/web/shard-003.jsonl, row 17"``, for messages."""
        raise NotImplementedError
