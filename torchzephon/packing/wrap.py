"""Wrap: the documents' tokens one after another, cut every ``capacity`` tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchzephon.errors import StateError
from torchzephon.packing.base import Columns, Options, Pieces


@dataclass(frozen=True)
class _Chunk:
    columns: Columns
    ends: NDArray[np.int64]  # of each document, in tokens
    size: int  # tokens


class Wrap:
    """A queue of tokens: a sequence is the next ``capacity`` of them, whatever documents they belong to.

    A sequence that lies within the documents of one :meth:`add` is a view; nothing is copied but its two ends.

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
        self._chunks: deque[_Chunk] = deque()
        self._at: int = 0 if state is None else state[self.TOKEN_KEY]  # tokens of the first chunk that are used
        self._left = -self._at
        self._released = 0  # documents of the chunks that are gone
        self._closed = False

    def add(self, columns: Columns, lengths: NDArray[np.int64]) -> None:
        """Adds consecutive documents: see :meth:`Packing.add`."""
        ends = np.cumsum(lengths)
        if not self._chunks and len(ends) and self._at and self._at >= ends[0]:
            raise StateError(
                f"the saved state has used {self._at} tokens of a document that now has {ends[0]}: the data or the "
                "tokenizer has changed since"
            )
        self._chunks.append(_Chunk(columns, ends, len(columns[0])))
        self._left += len(columns[0])

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
        count = self._capacity
        if self._left < count:
            if not self._closed:
                return None
            count = self._left
        if not count:
            return None
        first = self._chunks[0]
        stop = self._at + count
        if stop <= first.size:
            pieces = [[column[self._at : stop]] for column in first.columns]
            self._at = stop
        else:
            pieces = self._join(count)
        self._left -= count
        return None if self._drop_last and count < self._capacity else pieces

    def _join(self, count: int) -> Pieces:
        pieces: Pieces = [[] for _ in self._chunks[0].columns]
        while True:
            first = self._chunks[0]
            stop = min(self._at + count, first.size)
            for column, parts in zip(first.columns, pieces, strict=True):
                parts.append(column[self._at : stop])
            count -= stop - self._at
            self._at = stop
            if not count:
                return pieces
            self._chunks.popleft()
            self._released += len(first.ends)
            self._at = 0

    def cursor(self) -> tuple[int, dict[str, int]]:
        """Whole documents used, and tokens used of the next: see :meth:`Packing.cursor`."""
        if not self._chunks:
            return 0, {self.TOKEN_KEY: self._at}
        ends = self._chunks[0].ends
        done = int(np.searchsorted(ends, self._at, side="right"))
        return self._released + done, {self.TOKEN_KEY: self._at - (int(ends[done - 1]) if done else 0)}
