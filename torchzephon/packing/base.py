"""The protocol of a packing algorithm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Columns: TypeAlias = "Sequence[NDArray[Any]]"
"""Parallel flat arrays with one entry a token: token ids, positions, perhaps a loss mask."""

Pieces: TypeAlias = "list[list[NDArray[Any]]]"
"""One packed sequence: for each column the arrays that it is made of, in order, at most ``capacity`` tokens in all."""


class Packing(Protocol):
    """Turns a stream of documents into sequences of at most ``capacity`` tokens.

    Documents are added until :meth:`next` has a sequence. It knows nothing of where they come from: what it still
    holds is named by ordinals, counted from the oldest document that it holds.
    """

    def add(self, columns: Columns, lengths: NDArray[np.int64]) -> None:
        """Adds consecutive documents.

        Args:
            columns: parallel flat arrays ``[lengths.sum()]``, the documents' tokens one after another.
            lengths: int64 ``[n]``, tokens of each document; an empty document is one, too.
        """
        ...

    def close(self) -> None:
        """Says that no more documents will come."""
        ...

    def next(self) -> Pieces | None:
        """The next sequence; None where more documents are needed or, once closed, at the end."""
        ...

    def cursor(self) -> tuple[int, Mapping[str, Any]]:
        """What :meth:`next` goes on from.

        Returns:
            How many documents are held no longer, of all that were added, and what a new object needs (small, plain
            JSON) to go on when it is given the documents from there on.
        """
        ...
