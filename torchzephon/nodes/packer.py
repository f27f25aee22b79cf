"""SequencePacker: documents of tokens in, sequences of one length out."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torchdata.nodes import BaseNode

from torchzephon.data.block import Block
from torchzephon.errors import DataError, StateError
from torchzephon.nodes.batcher import TrainingBatcher
from torchzephon.nodes.buffered import BufferedNode
from torchzephon.nodes.graph import Estimate, walk
from torchzephon.nodes.stacks import Stack, stack_of
from torchzephon.nodes.tokens import mask_column, token_column
from torchzephon.nodes.work_source import WorkSource
from torchzephon.packing.base import Options, Oversize, Packing, Pieces
from torchzephon.packing.positions import document_positions, ramp
from torchzephon.packing.registry import ALGORITHMS

_IDS = np.iinfo(np.int32)


class SequencePacker(BufferedNode[dict[str, Any]]):
    """Packs tokenized documents into sequences of one length.

    Yields one sequence at a time, a dict of

    - ``input_ids``: int32 ``[length]``, ``length`` being ``seq_len + 1``, or ``seq_len`` with ``extra_token=False``;
    - ``positions``: int32 ``[length]``, each token's position in its document, so that a document starts wherever a
      position is not the one before plus one. Where a document is continued in another sequence, so are its positions;
    - ``num_tokens``: int, how many are real; the rest is padding, with positions from 0 on;
    - ``loss_mask``: bool ``[length]``, with ``loss_mask_field`` only; False in the padding.

    The arrays may be views of what the source gave: copy them before changing them. Documents without tokens are
    passed over. Its state is cursors: an anchor, and either the tokens used of one document (``"wrap"``) or the place
    in a window (the others); no token is lost or repeated by saving and loading.

    Args:
        source: yields Blocks, sample dicts, or lists of sample dicts.
        seq_len: length of the model's input, in tokens.
        field: the field with a document's token ids, a list or array of integers in ``[0, 2**31)``.
        loss_mask_field: a field with one bool (or 0 or 1) for each token: whether it is to be learned.
        algorithm: ``"wrap"`` puts all documents one after another and cuts every ``length`` tokens: no padding, but
            documents are cut. ``"best_fit"`` (best-fit decreasing) and ``"first_fit"`` (in order of arrival) keep
            documents whole and pad: they pack a window of consecutive documents at once.
        extra_token: one token more than ``seq_len``, so that the last input has its label too.
        drop_last: leave out what does not fill the last sequence, instead of padding it. For ``"wrap"`` only.
        window: documents that are packed at once; see :class:`torchzephon.packing.windows.Windows` for what very short
            and very long ones change. Not for ``"wrap"``.
        oversize: what becomes of a document longer than a sequence: ``"split"`` into full sequences and a rest,
            ``"truncate"``, ``"drop"`` or ``"error"``. What is truncated or dropped is logged, and counted in ``cut``.
            Not for ``"wrap"``.
        pad_token_id: id of the padding.

    Raises:
        TypeError: for a source that makes batches.
        DataError: from ``next``, for a sample without the field, with something else in it, or longer than a sequence
            with ``oversize="error"``: names the sample.
        StateError: from ``reset`` or ``next``, for a state that other data or another algorithm made.
    """

    def __init__(
        self,
        source: BaseNode[Any],
        seq_len: int,
        *,
        field: str = "input_ids",
        loss_mask_field: str | None = None,
        algorithm: str = "wrap",
        extra_token: bool = True,
        drop_last: bool = False,
        window: int = 1024,
        oversize: Oversize = "split",
        pad_token_id: int = 0,
    ) -> None:
        super().__init__(source)
        if isinstance(source, TrainingBatcher):
            raise TypeError(
                "SequencePacker packs documents, and TrainingBatcher makes batches of what is packed: put it above, "
                "TrainingBatcher(SequencePacker(...), batch_size)"
            )
        if not _is_int(seq_len) or seq_len < 1:
            raise ValueError(f"seq_len must be a positive number of tokens, got {seq_len!r}")
        if not _is_int(window) or window < 1:
            raise ValueError(f"window must be a positive number of documents, got {window!r}")
        if not _is_int(pad_token_id) or not 0 <= pad_token_id <= _IDS.max:
            raise ValueError(f"pad_token_id must be a token id, got {pad_token_id!r}")
        if algorithm not in ALGORITHMS:
            raise ValueError(f"algorithm must be one of {sorted(ALGORITHMS)}, got {algorithm!r}")
        if oversize not in ("split", "truncate", "drop", "error"):
            raise ValueError(f"oversize must be 'split', 'truncate', 'drop' or 'error', got {oversize!r}")
        self.seq_len = seq_len
        self.field = field
        self.loss_mask_field = loss_mask_field
        self.algorithm = algorithm
        self.extra_token = extra_token
        self.drop_last = drop_last
        self.window = window
        self.oversize: Oversize = oversize
        self.pad_token_id = pad_token_id
        self.length = seq_len + 1 if extra_token else seq_len
        self._names = ["input_ids", "positions"] + (["loss_mask"] if loss_mask_field is not None else [])
        self._leaf = _leaf_of_blocks(source)
        self._packing: Packing
        self._documents_released: int
        self._closed: bool
        self._start(None)

    @property
    def cut(self) -> int:
        """Documents truncated or dropped so far, because they were longer than a sequence."""
        return self._packing.cut

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Goes to the beginning, or to where the state was taken."""
        super().reset(initial_state)
        self._start(initial_state)
        if self._leaf is not None:
            self._leaf.begin_small()

    def next(self) -> dict[str, Any]:
        """The next sequence."""
        pieces = self._packing.next()
        while pieces is None:
            if self._closed:
                raise StopIteration
            self._feed()
            pieces = self._packing.next()
        return self._sequence(pieces)

    def next_stacked(self, count: int) -> Stack:
        """The next 1 to ``count`` sequences, each entry ``[n, ...]``: see :class:`~torchzephon.nodes.stacks.Stacking`.

        There are no ``num_tokens`` where all are real.
        """
        # A subclass, or who put another next() here, has changed what the next sequence is.
        is_plain = type(self) is SequencePacker and "next" not in vars(self)
        columns = self._packing.whole(count) if is_plain else ()
        if columns:
            return dict(zip(self._names, columns, strict=True))
        return stack_of(next(self))

    def get_state(self) -> dict[str, Any]:
        """The anchor, and what the algorithm goes on from."""
        state = self._settle()
        return {**super().get_state(), **state}

    def blank(self) -> dict[str, Any]:
        """A sequence of padding alone."""
        return self._sequence([[] for _ in self._names])

    def describe(self) -> dict[str, Any]:
        """All arguments: each changes the data."""
        return {
            "seq_len": self.seq_len,
            "field": self.field,
            "loss_mask_field": self.loss_mask_field,
            "algorithm": self.algorithm,
            "extra_token": self.extra_token,
            "drop_last": self.drop_last,
            "window": self.window,
            "oversize": self.oversize,
            "pad_token_id": self.pad_token_id,
        }

    def estimate(self, source: Estimate | None) -> Estimate | None:
        """The source's tokens in full sequences; what is tokenized on storage has about 4 bytes a token."""
        if source is None:
            return None
        tokens = source.tokens or source.bytes / 4
        return replace(source, tokens=tokens, items=tokens / self.length)

    def summary(self) -> str:
        """Algorithm and length."""
        return f"{self.algorithm} packing to {self.seq_len} tokens"

    def _start(self, state: Mapping[str, Any] | None) -> None:
        options = Options(drop_last=self.drop_last, window=self.window, oversize=self.oversize)
        own = {key: value for key, value in (state or {}).items() if key not in (self.SOURCE_KEY, self.USED_KEY)}
        counts = itertools.chain(*(value if isinstance(value, list) else [value] for value in own.values()))
        if not all(_is_int(count) and count >= 0 for count in counts):
            raise self._damaged(own)
        try:
            self._packing = ALGORITHMS[self.algorithm](self.length, options, state)
        except KeyError as error:
            raise StateError(
                f"SequencePacker: the state has no {error}, which algorithm={self.algorithm!r} needs: it was saved "
                "with another algorithm, whose place in the data this one cannot take; use that one"
            ) from None
        if state is not None and self._packing.cursor()[1] != own:  # what was read must be written the same
            raise self._damaged(own)
        self._documents_released = 0
        self._closed = False

    def _damaged(self, own: Mapping[str, Any]) -> StateError:
        return StateError(
            f"SequencePacker: the state is damaged, or was saved with another algorithm than {self.algorithm!r}: "
            f"{own!r:.200}"
        )

    def _settle(self) -> Mapping[str, Any]:
        """Releases the documents that are used up: not at every sequence, since only states need it. The cursor."""
        released, state = self._packing.cursor()
        self.release(released - self._documents_released)
        self._documents_released = released
        return state

    def _feed(self) -> None:
        """Gives the next block's documents to the algorithm, or says that there are no more."""
        self._settle()
        try:
            block = self.pull()
        except StopIteration:
            self._packing.close()
            self._closed = True
            return
        try:
            self._add(block)
        except Exception:
            self.push_back(block)  # asked again, it is to fail again, not to pass over the block
            raise

    def _add(self, block: Block) -> None:
        tokens = token_column(block, self.field)
        lengths = tokens.lengths
        columns: list[NDArray[Any]] = [tokens.flat, document_positions(lengths)]
        if self.loss_mask_field is not None:
            columns.append(mask_column(block, self.loss_mask_field, tokens).flat)
        if self.oversize == "error" and len(lengths) and lengths.max() > self.length:
            row = int(np.argmax(lengths > self.length))
            raise DataError(
                f"{block.locate(row)}: {lengths[row]} tokens, but a sequence holds {self.length}: pass "
                "oversize='split', 'truncate' or 'drop', or a longer seq_len"
            )
        self._packing.add(columns, lengths)

    def _sequence(self, pieces: Pieces) -> dict[str, Any]:
        """Joins the pieces and pads them."""
        first = pieces[0]
        count = len(first[0]) if len(first) == 1 else sum(map(len, first))
        if count < self.length:
            for name, parts in zip(self._names, pieces, strict=True):
                parts.append(self._padding(name, self.length - count))
        sequence: dict[str, Any] = {
            name: parts[0] if len(parts) == 1 else np.concatenate(parts)
            for name, parts in zip(self._names, pieces, strict=True)
        }
        sequence["num_tokens"] = count
        return sequence

    def _padding(self, name: str, count: int) -> NDArray[Any]:
        if name == "positions":
            return ramp(count)
        return np.zeros(count, np.bool_) if name == "loss_mask" else np.full(count, self.pad_token_id, np.int32)


def _leaf_of_blocks(source: BaseNode[Any]) -> WorkSource | None:
    """The leaf, where all nodes after it take blocks of any size and give the same samples; else None."""
    *nodes, leaf = walk(source)
    if isinstance(leaf, WorkSource) and all(getattr(type(node), "passes_blocks", False) for node in nodes):
        return leaf
    return None


def _is_int(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)
