"""Decoding ahead: what a lane reads next is decoded in the background while the consumer works on what it has."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from torchzephon.data.background import Task
from torchzephon.data.formats.unit import DECODER
from torchzephon.data.pool import Pool
from torchzephon.data.storage.store import Store
from torchzephon.nodes.work_source import WorkSource


def decode_ahead(source: WorkSource, stores: Sequence[Store], pool: Pool) -> None:
    """Has the next Work's row groups decoded into the pool. It changes no state: whatever goes wrong, reading tells."""
    with contextlib.suppress(Exception):
        for pointers in source.upcoming().by_shard():
            dataset, store = source.datasets[pointers.dataset], stores[pointers.dataset]
            for decode in dataset.to_decode(pointers.shard, pointers.rows, store, pool):
                Task(decode, DECODER)
