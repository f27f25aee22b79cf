"""The reference backend: Hugging Face tokenizers."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import numpy as np

from torchzephon.data.ragged import Ragged
from torchzephon.text.content import Content
from torchzephon.text.gate import gate
from torchzephon.text.threads import encoder_threads, thread_limit


class TokenizersEncoder:
    """What defines the ids of a ``tokenizer.json``.

    Args:
        content: with a ``tokenizer.json``.
        allow_special: whether control tokens spelled out in a text become control tokens.

    Raises:
        ValueError: for a pipeline that this version of tokenizers does not know.
    """

    def __init__(self, content: Content, *, allow_special: bool) -> None:
        from tokenizers import Tokenizer

        if content.json is None:
            raise ValueError("it has no tokenizer.json")
        self.name = f"tokenizers {version('tokenizers')}"
        try:
            self._tokenizer: Any = Tokenizer.from_str(content.json)
        except Exception as error:  # the library raises a bare Exception
            raise ValueError(f"tokenizers {version('tokenizers')} cannot load its tokenizer.json: {error}") from None
        self._tokenizer.encode_special_tokens = not allow_special  # true: encode them as ordinary text

    def encode(self, texts: list[str]) -> Ragged:
        """See :class:`~torchzephon.text.encoder.Encoder`."""
        if len(texts) == 1:
            return self.encode_serially(texts)
        check_texts(texts)
        with gate:
            if not gate.rayon:
                with thread_limit("RAYON_NUM_THREADS", encoder_threads()):
                    self._tokenizer.encode_batch_fast(["a", "b"])  # the first one in a process makes the pool
                gate.rayon = True
            encodings = self._tokenizer.encode_batch_fast(texts)
        return Ragged.from_rows([np.array(encoding.ids, np.int32) for encoding in encodings], np.int32)

    def encode_serially(self, texts: list[str]) -> Ragged:
        """The same on the calling thread alone, without making the library's thread pool."""
        check_texts(texts)
        return Ragged.from_rows([self._tokenizer.encode(text).ids for text in texts], np.int32)

    def encode_bare(self, text: str) -> list[int]:
        """The ids of one text without any control tokens around it."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def position(self, text: str, token: int) -> int:
        """The character at which a token of a text begins: for messages."""
        offsets = self._tokenizer.encode(text).offsets
        return int(offsets[token][0]) if token < len(offsets) else len(text)


def check_texts(texts: list[str]) -> None:
    """For libraries that take other things too, and say "TypeError" to lone surrogates.

    Raises:
        TypeError: for a text that is not a ``str``.
        UnicodeEncodeError: for a text with lone surrogates.
    """
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"a text must be a str, got {type(text).__name__}")
        text.encode()
