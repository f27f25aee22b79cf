"""The fast backend: fastokens."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import numpy as np

from torchzephon.data.ragged import Ragged
from torchzephon.text.content import Content
from torchzephon.text.gate import gate
from torchzephon.text.threads import thread_limit


class FastokensEncoder:
    """Byte-level BPE at some 80 times the speed of tokenizers. It gives one flat buffer, so no per-token Python.

    Args:
        content: with a ``tokenizer.json``.
        allow_special: whether control tokens spelled out in a text become control tokens.

    Raises:
        ImportError: where fastokens is not installed.
        ValueError: for a pipeline that fastokens does not support.
    """

    def __init__(self, content: Content, *, allow_special: bool) -> None:
        from fastokens import Tokenizer

        if content.json is None:
            raise ValueError("it has no tokenizer.json")
        self.name = f"fastokens {version('fastokens')}"
        self._split = not allow_special
        self._tokenizer: Any = Tokenizer.from_json_str(content.json)
        with gate, thread_limit("FASTOKENS_BPE_THREADS"):
            self._tokenizer.encode("a")  # the first one in a process makes the pool

    def encode(self, texts: list[str]) -> Ragged:
        """See :class:`~torchzephon.text.encoder.Encoder`."""
        with gate:
            ids, offsets = self._tokenizer.encode_batch_flat(texts, split_special_tokens=self._split)
        return Ragged(np.frombuffer(ids, np.int32), np.frombuffer(offsets, np.int64))
