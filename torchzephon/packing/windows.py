"""Windows: whole documents, packed a window of consecutive documents at a time."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from torchzephon.errors import StateError
from torchzephon.packing.base import Columns, Options, Pieces
from torchzephon.packing.documents import Documents
from torchzephon.packing.pieces import cut, usable

logger = logging.getLogger(__name__)

Fit: TypeAlias = "Callable[[NDArray[np.int64], int, int], NDArray[np.int64]]"
"""From the lengths of pieces (each in ``1..capacity``), the capacity, and how many of the pieces, from the first on,
have waited and should be placed first, to the sequence that each piece goes into, numbered from 0 without gaps: a pure
function."""

_Piece: TypeAlias = "tuple[Columns, slice]"

_FEWEST = 8  # sequences' worth of tokens in a window, however short its documents: fewer cannot be packed densely
_MOST_TOKENS = 1 << 21  # tokens after which a window ends, however few its documents: it is held in memory
_SNUG = 200  # a window ends where its last sequence lacks less than one part in so many of the window's tokens
_POOR = 0.95  # a sequence that is filled less waits for the next window
_MOST_WAITING = 64  # documents that wait for the next window: each costs a few bytes of state


class Windows:
    """Packs a tumbling window of consecutive documents at once, with an offline algorithm.

    A window is ``options.window`` documents; more, where those would make fewer than 8 sequences; fewer, where they
    have over 2 million tokens. From there on it ends with the first document whose tokens nearly fill a last sequence,
    after one sequence's worth of tokens at the latest. The emptiest sequences are not given out: their documents (at
    most 64) wait for the next window. None waits twice, so what is held is at most two windows. Within a sequence
    documents are in order of arrival, and the sequences of a window in the order of their first documents.

    A document longer than a sequence makes full sequences and a rest (``oversize="split"``), is cut to one sequence
    (``"truncate"``) or left out (``"drop"``); the last two are counted and logged.

    Args:
        fit: the algorithm.
        capacity: tokens of a sequence.
        options: ``window`` and ``oversize``; ``drop_last`` is refused.
        state: the second part of :meth:`cursor`.
    """

    SEQUENCE_KEY = "sequence"
    WAITED_KEY = "waited"
    FRESH_KEY = "fresh"
    CUT_KEY = "cut"

    def __init__(self, fit: Fit, capacity: int, options: Options, state: Mapping[str, Any] | None = None) -> None:
        if options.drop_last:
            raise ValueError(
                "drop_last=True is for algorithm='wrap', whose last sequence alone is not full: the others pad any of "
                "their sequences"
            )
        state = {self.SEQUENCE_KEY: 0} if state is None else state
        self._fit = fit
        self._capacity = capacity
        self._options = options
        # Ordinals count from the first document added. The documents of a window are those that waited for it, which
        # have the ordinals `_waited`, and after them all from `_fresh` on.
        self._waited: list[int] = np.cumsum(np.asarray(state.get(self.WAITED_KEY, []), np.int64)).tolist()
        self._fresh: int = state.get(self.FRESH_KEY, 0)
        self._parts: list[Documents] = []  # of the window: first, one by one, those that waited
        self._rest: Documents | None = None  # what was added, and is behind the window
        self._added = 0
        self._count = 0  # fresh documents in the window
        self._tokens = 0  # usable ones in the window
        self._limit: int | None = None  # tokens at which the window ends at the latest
        self._full = False
        self._closed = False
        self._sequences: list[list[_Piece]] = []  # of the window
        self._at: int = state[self.SEQUENCE_KEY]  # the next of `_sequences`
        self._waiting: list[tuple[int, _Piece]] = []  # for the next window, with ordinals
        self._cut: int = state.get(self.CUT_KEY, 0)  # before this window
        self._cut_here = 0

    @property
    def cut(self) -> int:
        """Documents that were truncated or left out: see :attr:`Packing.cut`."""
        return self._cut + self._cut_here

    def add(self, columns: Columns, lengths: NDArray[np.int64]) -> None:
        """Adds consecutive documents: see :meth:`Packing.add`."""
        documents = Documents.of(columns, lengths)
        # After a restart the first ones are of the window before: those that waited are picked out.
        known = min(max(self._fresh - self._added, 0), len(documents))
        for ordinal in self._waited:
            if self._added <= ordinal < self._added + known:
                row = ordinal - self._added
                self._parts.append(self._last_piece(documents[row : row + 1]))
                self._tokens += self._parts[-1].num_tokens
        self._added += len(documents)
        self._rest = documents[known:]

    def close(self) -> None:
        """Says that no more documents will come: see :meth:`Packing.close`."""
        if self._added < self._fresh:
            raise self._changed()
        self._closed = True

    def next(self) -> Pieces | None:
        """The next sequence: see :meth:`Packing.next`."""
        while not self._sequences:
            self._grow()
            if not self._full and not (self._closed and self._parts):
                if self._closed and self._at:
                    raise self._changed()
                return None
            self._pack()
        sequence = self._sequences[self._at]
        columns = range(len(sequence[0][0]))
        pieces = [[part[column][tokens] for part, tokens in sequence] for column in columns]
        self._at += 1
        if self._at == len(self._sequences):
            self._advance()
        return pieces

    def whole(self, most: int) -> Sequence[NDArray[Any]]:  # noqa: ARG002
        """None: the sequences are put together. See :meth:`Packing.whole`."""
        return ()

    def cursor(self) -> tuple[int, dict[str, Any]]:
        """Documents that are in no window any more, and the place in this one: see :meth:`Packing.cursor`."""
        oldest = self._waited[0] if self._waited else self._fresh
        state: dict[str, Any] = {self.SEQUENCE_KEY: self._at}
        if self._waited:
            state[self.WAITED_KEY] = np.diff(self._waited, prepend=oldest).tolist()
            state[self.FRESH_KEY] = self._fresh - oldest
        if self._cut:
            state[self.CUT_KEY] = self._cut
        return oldest, state

    def _grow(self) -> None:
        """Moves documents from the rest to the window until it is full."""
        if self._rest is None:
            return
        rest, capacity = self._rest, self._capacity
        tokens = self._tokens + np.cumsum(usable(rest.lengths, capacity, self._options.oversize))
        counts = self._count + np.arange(1, len(rest) + 1)
        enough = (tokens >= _FEWEST * capacity) & ((counts >= self._options.window) | (tokens >= _MOST_TOKENS))
        if self._limit is None and enough.any():
            self._limit = int(tokens[enough.argmax()]) + capacity
        full = enough & (-tokens % capacity <= tokens // _SNUG)
        if self._limit is not None:
            full |= tokens >= self._limit
        self._full = bool(full.any())
        taken = int(full.argmax()) + 1 if self._full else len(rest)
        if taken:
            self._parts.append(rest[:taken])
            self._count += taken
            self._tokens = int(tokens[taken - 1])
        self._rest = rest[taken:] if taken < len(rest) else None

    def _pack(self) -> None:
        """Packs the window."""
        lengths = np.concatenate([part.lengths for part in self._parts])
        owners, starts, stops = cut(lengths, self._capacity, self._options.oversize)
        chosen = self._fit(stops - starts, self._capacity, len(self._waited))
        poor = self._poor(chosen, stops - starts, owners < len(self._waited))

        # pieces as views: nothing is copied until a sequence is joined
        begins = np.cumsum([0, *(part.num_tokens for part in self._parts)])
        part_of = np.repeat(np.arange(len(self._parts)), [len(part) for part in self._parts])[owners]
        pieces: list[_Piece] = [
            (self._parts[part].columns, slice(start, stop))
            for part, start, stop in zip(
                part_of.tolist(), (starts - begins[part_of]).tolist(), (stops - begins[part_of]).tolist(), strict=True
            )
        ]

        # the sequences in the order of their first pieces, those that wait last; the pieces of each in their order
        _, first = np.unique(chosen, return_index=True)
        rank = np.empty(len(poor), np.int64)
        rank[np.lexsort((first, poor))] = np.arange(len(poor))
        order = np.argsort(rank[chosen], kind="stable").tolist()
        ends = np.cumsum(np.bincount(rank[chosen], minlength=len(poor)))[: len(poor) - int(poor.sum())].tolist()
        self._sequences = [
            [pieces[piece] for piece in order[start:end]] for start, end in itertools.pairwise([0, *ends])
        ]
        self._waiting = [
            (int(owners[piece]) - len(self._waited) + self._fresh, pieces[piece])
            for piece in np.flatnonzero(poor[chosen]).tolist()
        ]
        if self._options.oversize in ("truncate", "drop"):
            self._note_cut(lengths)
        if self._at > max(len(self._sequences) - 1, 0):
            raise self._changed()
        if not self._sequences:
            self._advance()

    def _poor(
        self, chosen: NDArray[np.int64], sizes: NDArray[np.int64], waited: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Which sequences are left for the next window: the emptiest, without a piece that has waited before."""
        fills = np.bincount(chosen, weights=sizes)
        poor = np.zeros(len(fills), np.bool_)
        if not self._full:  # no window follows
            return poor
        candidates = fills < _POOR * self._capacity
        candidates[chosen[waited]] = False
        emptiest = np.flatnonzero(candidates)
        emptiest = emptiest[np.argsort(fills[emptiest], kind="stable")][: len(fills) // 2]
        pieces = np.cumsum(np.bincount(chosen)[emptiest])
        poor[emptiest[pieces <= _MOST_WAITING]] = True
        return poor

    def _advance(self) -> None:
        """Goes on to the next window."""
        self._parts = [_single([column[tokens].copy() for column in part]) for _, (part, tokens) in self._waiting]
        self._waited = [ordinal for ordinal, _ in self._waiting]
        self._fresh += self._count
        self._tokens = sum(part.num_tokens for part in self._parts)
        self._count = self._at = 0
        self._limit = None
        self._full = False
        self._sequences, self._waiting = [], []
        self._cut, self._cut_here = self.cut, 0

    def _last_piece(self, document: Documents) -> Documents:
        """The piece of a document that can have waited: its others fill a sequence."""
        _, starts, stops = cut(document.lengths, self._capacity, self._options.oversize)
        if not len(starts):
            raise self._changed()
        return _single([column[starts[-1] : stops[-1]] for column in document.columns])

    def _note_cut(self, lengths: NDArray[np.int64]) -> None:
        before = self.cut
        self._cut_here = int((lengths > self._capacity).sum())
        if self.cut.bit_length() > before.bit_length():
            what = "cut" if self._options.oversize == "truncate" else "left out"
            logger.warning("%d documents longer than %d tokens were %s so far", self.cut, self._capacity, what)

    def _changed(self) -> StateError:
        return StateError(
            f"the window of {self._options.window} documents that the state was saved in cannot be packed again: the "
            "data or the tokenizer has changed since"
        )


def _single(columns: Columns) -> Documents:
    return Documents.of(columns, np.asarray([len(columns[0])], np.int64))
