"""What every packing algorithm has in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Columns: TypeAlias = "Sequence[NDArray[Any]]"
"""Parallel flat arrays with one entry a token: token ids, positions, perhaps a loss mask."""

Pieces: TypeAlias = "list[list[NDArray[Any]]]"
"""One packed sequence: for each column the arrays that it is made of, in order, at most ``capacity`` tokens in all."""

Oversize: TypeAlias = Literal["split", "truncate", "drop", "error"]
"""What becomes of a document that is longer than a sequence."""


@dataclass(frozen=True)
class Options:
    """What a user may choose about a packing; an algorithm refuses what it has no use for.

    Attributes:
        drop_last: leave out the last sequence when it is not full.
        window: how many documents are packed at once.
        oversize: what becomes of a document that is longer than a sequence. Documents that are an ``"error"`` are
            refused before they are added.
    """

    drop_last: bool = False
    window: int = 1024
    oversize: Oversize = "split"


class Packing(Protocol):
    """Turns a stream of documents into sequences of at most ``capacity`` tokens.

    Documents are added when :meth:`next` asks for them, until it has a sequence. Where they come from it does not
    know: what it still holds is named by ordinals, counted from the oldest document that it holds.
    """

    def add(self, columns: Columns, lengths: NDArray[np.int64]) -> None:
        """Adds consecutive documents.

        Args:
            columns: parallel flat arrays ``[lengths.sum()]``, the documents' tokens one after another.
            lengths: int64 ``[n]``, tokens of each document; an empty document is one, too.

        Raises:
            StateError: when they cannot be the documents that the state was made with.
        """
        ...

    def close(self) -> None:
        """Says that no more documents will come. Raises StateError when the state was made with more."""
        ...

    def next(self) -> Pieces | None:
        """The next sequence; None where more documents are needed or, once closed, at the end."""
        ...

    def whole(self, most: int) -> Sequence[NDArray[Any]]:
        """What the next calls of :meth:`next` would give, where that need not be put together.

        Args:
            most: sequences that are wanted.

        Returns:
            The columns of ``n`` full sequences, each ``[n, capacity]``; no columns where there is none at hand.
        """
        ...

    def cursor(self) -> tuple[int, Mapping[str, Any]]:
        """What :meth:`next` goes on from.

        Returns:
            How many documents are not held any more, of all that were added; and what a new object needs (small, plain
            JSON) to go on when it is given the documents from there on.
        """
        ...

    @property
    def cut(self) -> int:
        """Documents that lost tokens because they were longer than a sequence."""
        ...
