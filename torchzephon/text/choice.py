"""Choosing the encoder: the fast one where it is proven equal, the reference elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any

import numpy as np

from torchzephon.data.ragged import Ragged
from torchzephon.text.content import Content
from torchzephon.text.encoder import Encoder
from torchzephon.text.fast import FastokensEncoder
from torchzephon.text.probe import probe_texts
from torchzephon.text.reference import TokenizersEncoder
from torchzephon.text.slow import TransformersEncoder

logger = logging.getLogger(__name__)

BACKENDS = ("auto", "fastokens", "tokenizers", "transformers")


@lru_cache(maxsize=8)
def encoder_for(content: Content, backend: str, *, allow_special: bool) -> Any:
    """This process's encoder of a tokenizer, made when it is first asked for and shared by all who ask.

    Raises:
        ImportError, ValueError: where the backend is not installed or does not support the tokenizer.
    """
    if backend == "fastokens":
        reference = partial(reference_for, content, allow_special=allow_special)
        return FastokensEncoder(content, allow_special=allow_special, reference=reference)
    if backend == "tokenizers":
        return TokenizersEncoder(content, allow_special=allow_special)
    return TransformersEncoder(content, allow_special=allow_special)


def reference_for(content: Content, *, allow_special: bool) -> Any:
    """The encoder that defines what is right."""
    backend = "transformers" if content.json is None else "tokenizers"
    return encoder_for(content, backend, allow_special=allow_special)


@lru_cache(maxsize=64)
def choose_backend(content: Content, backend: str, *, allow_special: bool) -> str:
    """The backend that ``backend`` stands for.

    Raises:
        ValueError: for one asked for by name that cannot serve this tokenizer; says why.
    """
    if backend == "auto":
        if content.json is None:
            return "transformers"
        refusal = _refusal(content, allow_special)
        if refusal is not None:
            logger.warning(
                "tokenizer %r is encoded by tokenizers, which is slower than fastokens: %s", content.name, refusal
            )
        return "tokenizers" if refusal is not None else "fastokens"
    if backend == "fastokens":
        refusal = _refusal(content, allow_special)
    else:
        refusal = _reason(lambda: encoder_for(content, backend, allow_special=allow_special))
    if refusal is not None:
        raise ValueError(f'backend="{backend}" cannot serve tokenizer {content.name!r}: {refusal}; use backend="auto"')
    return backend


def _refusal(content: Content, allow_special: bool) -> str | None:
    """Why fastokens must not be used for a tokenizer, None where it may."""
    texts = probe_texts(content)
    with ThreadPoolExecutor(1) as loading:  # both libraries work without holding the interpreter
        loaded = loading.submit(reference_for, content, allow_special=allow_special)
        expected = loading.submit(lambda: loaded.result().encode_serially(texts))
        reason = _reason(lambda: encoder_for(content, "fastokens", allow_special=allow_special))
    loaded.result()  # what the reference cannot load, nothing can
    if reason is not None:
        return reason
    fast = encoder_for(content, "fastokens", allow_special=allow_special)
    return _disagreement(fast, texts, expected.result())


def _reason(make: Callable[[], Any]) -> str | None:
    try:
        make()
    except ImportError as error:
        return f"{error.name} is not installed (pip install {error.name})"
    except ValueError as error:
        return str(error)
    return None


def _disagreement(fast: Encoder, texts: list[str], right: Ragged) -> str | None:
    """The first text for which the ids are not the right ones, alone or in a batch, for the log."""
    for text, expected, together in zip(texts, right, fast.encode(texts), strict=True):
        for got in (together, fast.encode([text])[0]):
            if not np.array_equal(got, expected):
                return f"its ids differ for {text[:80]!r}"
    return None
