"""The backend of last resort: a transformers tokenizer written in Python."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import numpy as np

from torchzephon.data.ragged import Ragged
from torchzephon.text.content import Content
from torchzephon.text.reference import check_texts


class TransformersEncoder:
    """Asks transformers, text by text. Needed only for tokenizers that have no ``tokenizer.json``.

    Args:
        content: of any tokenizer.
        allow_special: whether control tokens spelled out in a text become control tokens.

    Raises:
        ImportError: where transformers is not installed.
    """

    def __init__(self, content: Content, *, allow_special: bool) -> None:
        import transformers

        self.name = f"transformers {version('transformers')}"
        self._split = not allow_special
        self._frame = content.frame if content.json is None else None  # else it is in the pipeline
        self._tokenizer: Any = content.slow
        if content.json is not None:
            from tokenizers import Tokenizer

            self._tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(content.json))

    def encode(self, texts: list[str]) -> Ragged:
        """See :class:`~torchzephon.text.encoder.Encoder`."""
        check_texts(texts)
        if self._frame is None:
            return Ragged.from_rows([self._ids(text, add_special_tokens=True) for text in texts], np.int32)
        prefix, suffix = ([token.id for token in part] for part in (self._frame.prefix, self._frame.suffix))
        return Ragged.from_rows([[*prefix, *self.encode_bare(text), *suffix] for text in texts], np.int32)

    encode_serially = encode

    def encode_bare(self, text: str) -> list[int]:
        """The ids of one text without any control tokens around it."""
        return self._ids(text, add_special_tokens=False)

    def _ids(self, text: str, *, add_special_tokens: bool) -> list[int]:
        encoding = self._tokenizer(
            text,
            add_special_tokens=add_special_tokens,
            split_special_tokens=self._split,
            return_attention_mask=False,
            return_token_type_ids=False,
            truncation=False,
            verbose=False,
        )
        return list(encoding["input_ids"])
