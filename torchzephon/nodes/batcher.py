"""TrainingBatcher: sequences in, batches of tensors out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torchdata.nodes import BaseNode

from torchzephon.nodes.graph import Blankable, walk


class TrainingBatcher(BaseNode[dict[str, Any]]):
    """Stacks packed sequences and makes labels: the next token."""

    SOURCE_KEY = "source"

    def __init__(
        self, source: BaseNode[Any], batch_size: int, *, drop_last: bool = False, ignore_index: int = -100
    ) -> None:
        super().__init__()
        self.source = source
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.ignore_index = ignore_index

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Resets the source."""
        super().reset(initial_state)
        self.source.reset(None if initial_state is None else initial_state[self.SOURCE_KEY])

    def next(self) -> dict[str, Any]:
        """The next batch."""
        rows: list[Mapping[str, Any]] = []
        for _ in range(self.batch_size):
            try:
                rows.append(next(self.source))
            except StopIteration:
                if not rows or self.drop_last:
                    raise
                rows += [self._blank_row()] * (self.batch_size - len(rows))
                break
        return self._batch(rows)

    def get_state(self) -> dict[str, Any]:
        """The source's state: nothing is held between batches."""
        return {self.SOURCE_KEY: self.source.state_dict()}

    def blank(self) -> dict[str, Any]:
        """A batch with nothing to learn from."""
        return self._batch([self._blank_row()] * self.batch_size)

    def describe(self) -> dict[str, Any]:
        """See :class:`torchzephon.nodes.graph.Described`."""
        return {"batch_size": self.batch_size, "drop_last": self.drop_last, "ignore_index": self.ignore_index}

    def _blank_row(self) -> Mapping[str, Any]:
        for node in walk(self.source):
            if isinstance(node, Blankable):
                row: Mapping[str, Any] = node.blank()
                return row
        raise TypeError("no node below TrainingBatcher has blank()")

    def _batch(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        length = len(rows[0]["input_ids"]) - 1
        shape = (len(rows), length)
        ids, labels, positions = (np.empty(shape, np.int64) for _ in range(3))
        for at, row in enumerate(rows):
            tokens = row["input_ids"]
            ids[at] = tokens[:-1]
            labels[at] = tokens[1:]
            positions[at] = row["positions"][:-1]
            count = row["num_tokens"]
            if count <= length:
                labels[at, max(count - 1, 0) :] = self.ignore_index
            if "loss_mask" in row:
                labels[at][~row["loss_mask"][1:]] = self.ignore_index
        return {
            "input_ids": torch.from_numpy(ids),
            "labels": torch.from_numpy(labels),
            "positions": torch.from_numpy(positions),
        }
