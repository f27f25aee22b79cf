"""SequencePacker: documents of tokens in, sequences of one length out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torchdata.nodes import BaseNode

from torchzephon.nodes.buffered import BufferedNode
from torchzephon.nodes.tokens import mask_column, token_column
from torchzephon.packing.base import Packing, Pieces
from torchzephon.packing.positions import document_positions, ramp
from torchzephon.packing.wrap import Wrap


class SequencePacker(BufferedNode[dict[str, Any]]):
    """Packs tokenized documents into sequences of one length."""

    def __init__(
        self,
        source: BaseNode[Any],
        seq_len: int,
        *,
        field: str = "input_ids",
        loss_mask_field: str | None = None,
        extra_token: bool = True,
        drop_last: bool = False,
        pad_token_id: int = 0,
    ) -> None:
        super().__init__(source)
        self.seq_len = seq_len
        self.field = field
        self.loss_mask_field = loss_mask_field
        self.extra_token = extra_token
        self.drop_last = drop_last
        self.pad_token_id = pad_token_id
        self.length = seq_len + extra_token
        self._padding: dict[str, NDArray[Any]] = {
            "input_ids": np.full(self.length, pad_token_id, np.int32),
            "positions": ramp(self.length),
        }
        if loss_mask_field is not None:
            self._padding["loss_mask"] = np.zeros(self.length, np.bool_)
        self._packing: Packing
        self._released_documents: int
        self._closed: bool
        self._start(None)

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Goes back to the beginning, or to where the state was taken."""
        super().reset(initial_state)
        self._start(initial_state)

    def next(self) -> dict[str, Any]:
        """The next sequence."""
        pieces = self._packing.next()
        while pieces is None:
            if self._closed:
                raise StopIteration
            self._feed()
            pieces = self._packing.next()
        return self._sequence(pieces)

    def get_state(self) -> dict[str, Any]:
        """The anchor, and what the packing algorithm goes on from."""
        released, state = self._packing.cursor()
        self.release(released - self._released_documents)
        self._released_documents = released
        return {**super().get_state(), **state}

    def blank(self) -> dict[str, Any]:
        """A sequence of padding alone."""
        return self._sequence([[] for _ in self._padding])

    def _start(self, state: Mapping[str, Any] | None) -> None:
        self._packing = Wrap(self.length, drop_last=self.drop_last, state=state)
        self._released_documents = 0
        self._closed = False

    def _feed(self) -> None:
        try:
            block = self.pull()
        except StopIteration:
            self._closed = True
            self._packing.close()
            return
        try:
            tokens = token_column(block, self.field)
            lengths = tokens.lengths
            columns = [tokens.flat, document_positions(lengths)]
            if self.loss_mask_field is not None:
                columns.append(mask_column(block, self.loss_mask_field, tokens).flat)
            self._packing.add(columns, lengths)
        except ValueError:
            self.push_back(block)
            raise

    def _sequence(self, pieces: Pieces) -> dict[str, Any]:
        count = sum(map(len, pieces[0]))
        missing = self.length - count
        sequence: dict[str, Any] = {}
        for (name, padding), parts in zip(self._padding.items(), pieces, strict=True):
            if missing:
                parts.append(padding[:missing])
            sequence[name] = parts[0] if len(parts) == 1 else np.concatenate(parts)
        sequence["num_tokens"] = count
        return sequence
