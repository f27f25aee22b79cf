"""Stacks: several sequences at once, for what is one array to begin with and need not be cut and put together again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Stack: TypeAlias = "Mapping[str, NDArray[Any]]"
"""``n`` sequences: each entry that :class:`~torchzephon.SequencePacker` documents, ``[n, ...]``."""

_FIELDS = ("input_ids", "positions", "loss_mask", "num_tokens")


class Stacking(Protocol):
    """A node of which several sequences can be had at once."""

    def next_stacked(self, count: int) -> Stack:
        """The next 1 to ``count`` sequences, as many as are at hand.

        Raises:
            StopIteration: at the end.
        """
        ...


def stack_of(sequence: Mapping[str, Any]) -> Stack:
    """One sequence."""
    return {name: np.asarray(sequence[name])[None] for name in _FIELDS if name in sequence}
