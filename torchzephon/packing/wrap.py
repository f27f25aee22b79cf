"""Wrap: the documents' tokens one after another, cut every ``capacity`` tokens."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchzephon.errors import StateError
from torchzephon.packing.base import Columns, Options, Pieces
from torchzephon.packing.documents import Documents


class Wrap:
    """A queue of tokens: a sequence is the next ``capacity`` of them, whatever documents they belong to.

    A sequence that lies within the documents of one :meth:`add` is a view; nothing is copied but its two ends. Those
    sequences are the rows of a matrix, since slices one by one would cost as much as the rest.

    Args:
        capacity: tokens of a sequence.
        options: ``drop_last``; the others are refused.
        state: the second part of :meth:`cursor`.
    """

    TOKEN_KEY = "token"
    cut = 0  # a document is continued in the next sequence, however long

    def __init__(self, capacity: int, options: Options, state: Mapping[str, Any] | None = None) -> None:
        if replace(options, drop_last=False) != Options():
            raise ValueError(
                "window and oversize are for the algorithms that keep documents whole: algorithm='wrap' cuts the "
                "stream of all documents' tokens"
            )
        self._capacity = capacity
        self._drop_last = options.drop_last
        self._parts: deque[Documents] = deque()
        self._matrices: Sequence[NDArray[Any]] = ()  # the columns of whole sequences of the first part
        self._row = self._rows = 0  # the next of them, and how many there are
        self._at: int = 0 if state is None else state[self.TOKEN_KEY]  # tokens of the first part that are used
        self._left = -self._at  # tokens
        self._released = 0  # documents of the parts that are gone
        self._closed = False

    def add(self, columns: Columns, lengths: NDArray[np.int64]) -> None:
        """Adds consecutive documents: see :meth:`Packing.add`."""
        documents = Documents.of(columns, lengths)
        if not self._parts and len(documents) and self._at and self._at >= lengths[0]:
            raise StateError(
                f"the saved state has used {self._at} tokens of a document that now has {lengths[0]}: the data or the "
                "tokenizer has changed since"
            )
        if self._parts and not self._left:
            self._drop_first()
        self._parts.append(documents)
        self._left += documents.num_tokens

    def close(self) -> None:
        """Says that no more documents will come."""
        if self._left < 0:
            raise StateError(
                f"the saved state has used {self._at} tokens of a document, but no document follows: the data has "
                "changed since"
            )
        self._closed = True

    def next(self) -> Pieces | None:
        """The next ``capacity`` tokens, fewer at the end: see :meth:`Packing.next`."""
        if self._row < self._rows:
            return [[matrix[0]] for matrix in self.whole(1)]
        count = self._capacity
        if self._left < count:
            if not self._closed or not self._left:
                return None
            count = self._left
        pieces = self._join(count)
        self._left -= count
        self._cut_rows()
        return None if self._drop_last and count < self._capacity else pieces

    def whole(self, most: int) -> Sequence[NDArray[Any]]:
        """Full sequences that are views: see :meth:`Packing.whole`."""
        first, self._row = self._row, min(self._row + most, self._rows)
        tokens = (self._row - first) * self._capacity
        self._at += tokens
        self._left -= tokens
        return [matrix[first : self._row] for matrix in self._matrices] if tokens else []

    def cursor(self) -> tuple[int, dict[str, int]]:
        """Whole documents used, and tokens used of the next: see :meth:`Packing.cursor`."""
        if not self._parts:
            return 0, {self.TOKEN_KEY: self._at}
        bounds = self._parts[0].bounds
        done = bisect_right(bounds, self._at, lo=1) - 1
        return self._released + done, {self.TOKEN_KEY: self._at - bounds[done]}

    def _cut_rows(self) -> None:
        """Cuts what is left of the first part into sequences."""
        first = self._parts[0]
        count = (first.num_tokens - self._at) // self._capacity
        stop = self._at + count * self._capacity
        self._matrices = [c[self._at : stop].reshape(count, self._capacity) for c in first.columns]
        self._row, self._rows = 0, count

    def _join(self, count: int) -> Pieces:
        pieces: Pieces = [[] for _ in self._parts[0].columns]
        while True:
            first = self._parts[0]
            stop = min(self._at + count, first.num_tokens)
            for column, parts in zip(first.columns, pieces, strict=True):
                parts.append(column[self._at : stop])
            count -= stop - self._at
            self._at = stop
            if not count:
                return pieces
            self._drop_first()

    def _drop_first(self) -> None:
        self._released += len(self._parts.popleft())
        self._at = 0
