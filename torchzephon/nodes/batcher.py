"""TrainingBatcher: sequences in, batches of tensors out."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torchdata.nodes import BaseNode

from torchzephon.errors import DataError, StateError
from torchzephon.nodes.boundaries import bounds_of, continued
from torchzephon.nodes.graph import Empty, Estimate, find_blank, walk
from torchzephon.nodes.stacks import Stack, Stacking, stack_of

_TENSORS = ("input_ids", "labels", "positions")
_INT32 = torch.iinfo(torch.int32)


class TrainingBatcher(BaseNode[dict[str, Any]]):
    """Stacks packed sequences into batches for a causal language model.

    Yields dicts of new tensors, each contiguous int64 ``[batch_size, seq_len]`` (those of a batch lie in one piece of
    memory, which no other batch shares):

    - ``input_ids``;
    - ``labels``, the token after each input; ``ignore_index`` where there is none to learn: in and before padding,
      where the loss mask is False for the label, and with ``mask_document_starts`` where the label is the first token
      of a document;
    - ``positions``, each token's position in its document. Padding counts from 0.

    With ``cu_seqlens=True`` also, for attention that keeps the documents apart (the convention of flash-attention's
    ``varlen`` functions, for the batch flattened to one row):

    - ``cu_seqlens``: int32 ``[documents + 1]``, where each document starts in the flattened batch, and the end. A row
      starts a document, and so does padding;
    - ``max_seqlen``: int, the longest document.

    The last batch of finite data is filled up with blank rows (all padding). Nothing is held between batches, so
    ``batch_size`` may differ after a restart.

    Args:
        source: yields sequences such as :class:`SequencePacker` makes: ``input_ids`` ``[length]`` and, where they are
            not the default, ``positions`` (0, 1, 2...), ``num_tokens`` (all) and ``loss_mask`` (all True). The nearest
            node with an attribute ``extra_token`` says whether ``length`` is ``seq_len + 1`` (True, the default) or
            ``seq_len``, where the last input has no label.
        batch_size: sequences in a batch.
        drop_last: leave out the last batch when there are too few sequences for it.
        cu_seqlens: whether to add ``cu_seqlens`` and ``max_seqlen``.
        mask_document_starts: whether the first token of a document is no label for the last of the one before it.
        ignore_index: the label of what is not to be learned, as in ``torch.nn.functional.cross_entropy``.

    Raises:
        DataError: from ``next``, for sequences of different lengths.
        TypeError: from ``next``, for something that is no sequence.
    """

    SOURCE_KEY = "source"

    def __init__(
        self,
        source: BaseNode[Any],
        batch_size: int,
        *,
        drop_last: bool = False,
        cu_seqlens: bool = False,
        mask_document_starts: bool = False,
        ignore_index: int = -100,
    ) -> None:
        super().__init__()
        if not isinstance(source, BaseNode):
            raise TypeError(f"source must be a node, got {type(source).__name__}")
        if not isinstance(batch_size, (int, np.integer)) or isinstance(batch_size, bool) or batch_size < 1:
            raise ValueError(f"batch_size must be a positive number of sequences, got {batch_size!r}")
        self.source = source
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.cu_seqlens = cu_seqlens
        self.mask_document_starts = mask_document_starts
        self.ignore_index = ignore_index
        self._empty_narrow: Empty | None = None

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Resets the source."""
        super().reset(initial_state)
        if initial_state is None:
            self.source.reset(None)
        elif self.SOURCE_KEY in initial_state:
            self.source.reset(initial_state[self.SOURCE_KEY])
        else:
            raise StateError(f"TrainingBatcher: the state lacks 'source': it has {sorted(initial_state)}")

    def next(self) -> dict[str, Any]:
        """The next batch."""
        stacks: list[Stack] = []
        missing = self.batch_size
        while missing:
            try:
                stacks.append(self._next_stack(missing))
            except StopIteration:
                break
            missing -= len(stacks[-1]["input_ids"])
        if not stacks or (missing and self.drop_last):
            raise StopIteration
        if missing:
            stacks += [self._blank_like(stacks[0])] * missing
        return self._batch(stacks)

    def get_state(self) -> dict[str, Any]:
        """The source's state: nothing is held between batches."""
        return {self.SOURCE_KEY: self.source.state_dict()}

    def blank(self) -> dict[str, Any]:
        """A batch with nothing to learn from.

        Raises:
            TypeError: when the source cannot make a blank sequence.
        """
        blank = find_blank(self.source)
        if blank is None:
            raise TypeError(
                f"TrainingBatcher cannot make a blank batch: its source, {type(self.source).__name__}, has no blank() "
                "that gives a sequence with num_tokens=0, as SequencePacker has"
            )
        return self._batch([stack_of(blank())] * self.batch_size)

    def narrow(self, empty: Empty) -> Collection[str]:
        """Yields int32 tensors from now on, where all values fit: see :class:`~torchzephon.nodes.graph.Narrowable`."""
        if type(self) is not TrainingBatcher:  # a subclass may reckon with the tensors
            return ()
        if _INT32.min <= self.ignore_index <= _INT32.max:
            self._empty_narrow = empty
        return _TENSORS

    def describe(self) -> dict[str, Any]:
        """All arguments: each changes the batches."""
        return {
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
            "cu_seqlens": self.cu_seqlens,
            "mask_document_starts": self.mask_document_starts,
            "ignore_index": self.ignore_index,
        }

    def estimate(self, source: Estimate | None) -> Estimate | None:
        """The source's sequences in full batches."""
        return None if source is None else replace(source, items=source.items / self.batch_size)

    def _next_stack(self, most: int) -> Stack:
        """The next sequences, 1 to ``most`` of them."""
        if hasattr(type(self.source), "next_stacked"):  # to ask isinstance would take longer than the batch
            return cast("Stacking", self.source).next_stacked(most)
        sequence = next(self.source)
        if not isinstance(sequence, Mapping) or "input_ids" not in sequence:
            raise TypeError(
                f"TrainingBatcher needs packed sequences, dicts with input_ids, got {sequence!r:.80}: put a "
                "SequencePacker right below it, TrainingBatcher(SequencePacker(...), batch_size)"
            )
        return stack_of(sequence)

    def _batch(self, stacks: Sequence[Stack]) -> dict[str, Any]:
        first = stacks[0]
        length = first["input_ids"].shape[1]
        seq_len = length - self._extra_token
        rows = sum(len(stack["input_ids"]) for stack in stacks)
        # In one piece, and numpy's: to allocate takes its time, and torch gives the interpreter away to do it.
        arrays: NDArray[Any]
        if self._empty_narrow is not None and all(map(_is_narrow, stacks)):
            arrays = self._empty_narrow((3, rows, seq_len), np.int32)
        else:
            arrays = np.empty((3, rows, seq_len), np.int64)
        ids, labels, positions = arrays
        _fill(ids, stacks, "input_ids", length)
        if seq_len < length:
            _fill(labels, stacks, "input_ids", length, start=1)
        else:  # what follows the last token is not known
            labels[:, :-1] = ids[:, 1:]
            labels[:, -1] = self.ignore_index
        if "positions" in first:
            _fill(positions, stacks, "positions", length)
        else:
            positions[...] = np.arange(seq_len)
        if self.mask_document_starts:
            whole = positions
            if "positions" in first:
                whole = _fill(np.empty((rows, length), np.int64), stacks, "positions", length)
            starts = ~continued(whole)
            labels[:, : starts.shape[1]][starts] = self.ignore_index
        if "loss_mask" in first:
            learned = _fill(np.empty((rows, length - 1), np.bool_), stacks, "loss_mask", length, start=1)
            labels[:, : length - 1][~learned] = self.ignore_index
        self._mask_padding(labels, stacks, length)

        batch: dict[str, Any] = dict(zip(_TENSORS, map(torch.from_numpy, arrays), strict=True))
        if self.cu_seqlens:
            batch |= bounds_of(positions)
        return batch

    def _mask_padding(self, labels: NDArray[Any], stacks: Sequence[Stack], length: int) -> None:
        """Nothing is to be learned where a sequence ends, and after it."""
        row = 0
        for stack in stacks:
            for label, count in enumerate(stack["num_tokens"].tolist() if "num_tokens" in stack else ()):
                if count < length:
                    labels[row + label, max(count - 1, 0) :] = self.ignore_index
            row += len(stack["input_ids"])

    @functools.cached_property
    def _extra_token(self) -> bool:
        """Whether a sequence has one token more than a row of the batch, for the last label."""
        return bool(next((node.extra_token for node in walk(self.source) if hasattr(node, "extra_token")), True))

    def _blank_like(self, stack: Stack) -> Stack:
        """A blank sequence to fill a batch up with."""
        blank = find_blank(self.source)
        if blank is not None:
            return stack_of(blank())
        zeros = {name: np.zeros_like(stack[name][0]) for name in ("input_ids", "loss_mask") if name in stack}
        return stack_of({**zeros, "positions": np.arange(stack["input_ids"].shape[1]), "num_tokens": 0})


def _is_narrow(stack: Stack) -> bool:
    """Whether it has nothing that int32 does not hold."""
    return all(stack[name].dtype == np.int32 for name in ("input_ids", "positions") if name in stack)


def _fill(rows: NDArray[Any], stacks: Sequence[Stack], name: str, length: int, *, start: int = 0) -> NDArray[Any]:
    """Copies the entries from ``start`` on of all sequences into ``rows``, widening them; returns it."""
    stop = start + rows.shape[1]
    at = 0
    for stack in stacks:
        values = stack[name]
        if values.shape[1] != length:
            lengths = sorted({each[name].shape[1] for each in stacks} | {length})
            raise DataError(
                f"the sequences of a batch have {name} of different lengths, {lengths}: TrainingBatcher stacks "
                "sequences of one length, as SequencePacker makes them"
            )
        rows[at : at + len(values)] = values[:, start:stop]
        at += len(values)
    return rows
