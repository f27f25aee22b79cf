"""The encoder that a graph holds: plain data that copies and pickles, and the process's encoder behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchzephon.data.ragged import Ragged
from torchzephon.errors import DataError
from torchzephon.text.choice import choose_backend, encoder_for, reference_for
from torchzephon.text.content import Content
from torchzephon.text.watch import first_difference, watched_rows

_WATCHED_CHARS = 1 << 15  # of a longer text only the beginning is checked, for which the reference needs some 10 ms
_EDGE_TOKENS = 64  # to leave out where a text was cut


class SharedEncoder:
    """Encodes with the chosen backend, and watches it if it is not the reference. Thread-safe; lanes share it.

    Args:
        content: the tokenizer.
        backend: ``"auto"``, ``"fastokens"``, ``"tokenizers"`` or ``"transformers"``.
        allow_special: whether control tokens spelled out in a text become control tokens.

    Raises:
        ValueError: for a backend that cannot serve the tokenizer.

    Attributes:
        name: library and version of the chosen backend.
    """

    def __init__(self, content: Content, *, backend: str, allow_special: bool) -> None:
        self.content = content
        self.allow_special = allow_special
        self.backend = choose_backend(content, backend, allow_special=allow_special)
        self.name: str = self._encoder().name

    def encode(self, texts: list[str], locate: Callable[[int], str]) -> Ragged:
        """The ids of each text.

        Args:
            texts: one document each.
            locate: where the text of that index came from, for messages.

        Raises:
            TypeError: for a text that is not a ``str``.
            UnicodeEncodeError: for a text with lone surrogates.
            DataError: for a text of which the backend's ids are not the reference's.
        """
        ids: Ragged = self._encoder().encode(texts)
        if self.backend == "fastokens":
            for row in watched_rows(ids).tolist():
                self._check(texts[row], ids[row], row, locate)
        return ids

    def frame_lengths(self) -> tuple[int, int]:
        """How many control tokens go before and after every document.

        Raises:
            ValueError: where the tokenizer itself decides, and not alike for every text.
        """
        if self.content.frame is not None:
            return len(self.content.frame.prefix), len(self.content.frame.suffix)
        reference = self._reference()
        found = set()
        for text in ("a", "b c", "1"):
            bare, framed = reference.encode_bare(text), reference.encode_serially([text])[0].tolist()
            room = len(framed) - len(bare)
            starts = [start for start in range(room + 1) if framed[start : start + len(bare)] == bare]
            found.add((starts[0], room - starts[0]) if starts else None)
        lengths = found.pop()
        if found or lengths is None:
            raise ValueError(
                f'special_tokens="tokenizer_default": tokenizer {self.content.name!r} does more than to put the same '
                "tokens around every text, so its documents cannot be truncated; name the tokens, for instance "
                '"bos_eos", or pass overflow="split"'
            )
        return lengths

    def _encoder(self) -> Any:
        return encoder_for(self.content, self.backend, allow_special=self.allow_special)

    def _reference(self) -> Any:
        return reference_for(self.content, allow_special=self.allow_special)

    def _check(self, text: str, got: NDArray[np.int32], row: int, locate: Callable[[int], str]) -> None:
        """Raises DataError if the reference encodes a text differently."""
        reference = self._reference()
        expected = reference.encode_serially([text[:_WATCHED_CHARS]])[0]
        if len(text) > _WATCHED_CHARS:
            whole = max(0, len(expected) - _EDGE_TOKENS)
            if first_difference(got[:whole], expected[:whole]) is None:
                return
            expected = reference.encode_serially([text])[0]
        at = first_difference(got, expected)
        if at is None:
            return
        window = slice(max(0, at - 3), at + 5)
        char = reference.position(text, at)
        raise DataError(
            f"{locate(row)}: {self.name} encodes this text differently from {reference.name}, from token {at} on: "
            f"{got[window].tolist()} instead of {expected[window].tolist()} (from token {window.start}), at "
            f'{text[max(0, char - 40) : char + 40]!r}. Use TextTokenizer(..., backend="tokenizers"), which defines '
            "the ids, and tell the authors of fastokens"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> SharedEncoder:
        return self
