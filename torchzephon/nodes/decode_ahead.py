"""Decoding ahead: what a lane reads next is decoded in the background while the consumer works on what it has."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial

from torchzephon.curriculum.work import InShard
from torchzephon.data.background import Task
from torchzephon.data.dataset import Dataset
from torchzephon.data.formats.unit import DECODER
from torchzephon.data.pool import Pool
from torchzephon.data.storage.store import Store
from torchzephon.nodes.work_source import WorkSource


def decode_ahead(source: WorkSource, stores: Sequence[Store], pool: Pool) -> None:
    """Has the next Work's row groups decoded into the pool. It changes no state: whatever goes wrong, reading tells."""
    with contextlib.suppress(Exception):
        for pointers in source.upcoming().by_shard():
            dataset, store = source.datasets[pointers.dataset], stores[pointers.dataset]
            if not dataset.is_decoded(pointers.shard, pointers.rows, store, pool):
                Task(partial(_decode, dataset, pointers, store, pool), DECODER)


def _decode(dataset: Dataset, pointers: InShard, store: Store, pool: Pool) -> None:
    with contextlib.suppress(Exception):
        dataset.row_bytes(pointers.shard, pointers.rows, store, pool)
