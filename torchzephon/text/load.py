"""Finding a tokenizer's content: in a directory, a file, the Hub's cache, or an object."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import orjson

from torchzephon.text.content import Content, SpecialTokens, token_of
from torchzephon.text.files import CONFIGS, PIPELINE, content_of_files
from torchzephon.text.hub import download

_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


def load_content(tokenizer: Any, special_tokens: SpecialTokens) -> Content:
    """The content of whatever ``TextTokenizer(tokenizer=...)`` takes.

    transformers is imported only for places without a ``tokenizer.json``.

    Args:
        tokenizer: a directory, or a ``tokenizer.json`` with ``tokenizer_config.json`` beside it for the control
            tokens; a Hub id; a ``tokenizers.Tokenizer``; a fast or slow transformers tokenizer.
        special_tokens: which control tokens every document gets.

    Raises:
        ValueError: where there is no tokenizer, none whose ids can be repeated, or none with these control tokens.
        TypeError: for anything else.
    """
    if isinstance(tokenizer, (str, os.PathLike)):
        return _from_place(os.fspath(tokenizer), special_tokens)
    name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
    pipeline = getattr(tokenizer, "backend_tokenizer", tokenizer)  # of transformers, or of tokenizers itself
    if hasattr(pipeline, "to_str"):
        bos, eos = token_of(tokenizer, "bos"), token_of(tokenizer, "eos")
        return Content.from_pipeline(name, orjson.loads(pipeline.to_str()), bos, eos, special_tokens)
    if hasattr(tokenizer, "get_vocab") and hasattr(tokenizer, "added_tokens_decoder"):
        return Content.from_slow(name, tokenizer, special_tokens)
    raise TypeError(
        "tokenizer must be a path, a Hub id, a tokenizers.Tokenizer or a transformers tokenizer, "
        f"got {type(tokenizer).__name__}"
    )


def _from_place(place: str, special_tokens: SpecialTokens) -> Content:
    path = Path(place).expanduser()
    if path.is_file():
        return content_of_files(place, path, [path.parent / config for config in CONFIGS], special_tokens)
    if path.is_dir():
        if (path / PIPELINE).is_file():
            return content_of_files(place, path / PIPELINE, [path / config for config in CONFIGS], special_tokens)
        return _by_transformers(place, special_tokens)
    if not _HUB_ID.fullmatch(place):
        raise ValueError(f"tokenizer {place!r}: no such file or directory")
    pipeline, configs = download(place)
    if pipeline is None:
        return _by_transformers(place, special_tokens)
    return content_of_files(place, pipeline, configs, special_tokens)


def _by_transformers(place: str, special_tokens: SpecialTokens) -> Content:
    """For places without a ``tokenizer.json``."""
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise ValueError(
            f"tokenizer {place!r} has no {PIPELINE}; other tokenizers need transformers: pip install transformers"
        ) from None
    try:
        tokenizer = AutoTokenizer.from_pretrained(place)
    except Exception as error:  # it raises about everything
        raise ValueError(
            f"tokenizer {place!r} has no {PIPELINE}, and transformers finds no other tokenizer there: {error}"
        ) from error
    return load_content(tokenizer, special_tokens)
