"""The protocol of an encoder backend."""

from __future__ import annotations

from typing import Protocol

from torchzephon.data.ragged import Ragged


class Encoder(Protocol):
    """Turns texts into token ids. Deterministic, safe to call from several threads at once.

    Attributes:
        name: library and version, such as ``"fastokens 0.3.5"``: goes into the graph description.
    """

    name: str

    def encode(self, texts: list[str]) -> Ragged:
        """The ids of each text with the control tokens around it that its content says: int32 values, int64 offsets.

        Raises:
            TypeError: for a text that is not a ``str``.
            UnicodeEncodeError: for a text with lone surrogates.
        """
        ...
