"""A tokenizer's files: the pipeline, and the configuration that names its control tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from torchzephon.text.content import Content, SpecialTokens, Token

PIPELINE = "tokenizer.json"
CONFIGS = ("special_tokens_map.json", "tokenizer_config.json")  # the later one wins

_PLAIN = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}


def content_of_files(
    name: str, pipeline_file: Path, config_files: Sequence[Path], special_tokens: SpecialTokens
) -> Content:
    """The content of a tokenizer, as transformers reads it from the same files.

    Args:
        name: for messages.
        pipeline_file: ``tokenizer.json``.
        config_files: those of :data:`CONFIGS`, in order; missing ones are passed over.
        special_tokens: which control tokens every document gets.

    Raises:
        ValueError: for a file that is not what it should be, or a control token that the tokenizer lacks.
    """
    pipeline = _read(name, pipeline_file)
    config: dict[str, Any] = {}
    for file in config_files:
        if file.is_file():
            config |= {key: value for key, value in _read(name, file).items() if value is not None}
    ids = _add_configured_tokens(pipeline, config)

    def named(kind: str) -> Token | None:
        text = _text_of(config.get(f"{kind}_token"))
        return None if text is None or text not in ids else Token(text, ids[text])

    return Content.from_pipeline(name, pipeline, named("bos"), named("eos"), special_tokens)


def _read(name: str, file: Path) -> dict[str, Any]:
    try:
        value = orjson.loads(file.read_bytes())
    except orjson.JSONDecodeError as error:
        raise ValueError(f"tokenizer {name!r}: {file} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"tokenizer {name!r}: {file} must hold a JSON object, not a {type(value).__name__}")
    return value


def _add_configured_tokens(pipeline: dict[str, Any], config: dict[str, Any]) -> dict[str, int]:
    """Adds to the pipeline the control tokens that only its configuration names, as transformers does when it loads.

    Returns:
        token text -> id, of the whole vocabulary.
    """
    vocab = (pipeline.get("model") or {}).get("vocab") or {}
    ids = dict(vocab) if isinstance(vocab, dict) else {token: index for index, (token, _) in enumerate(vocab)}
    added = {token["content"]: token for token in pipeline.get("added_tokens") or []}
    ids |= {text: token["id"] for text, token in added.items()}
    for index, token in (config.get("added_tokens_decoder") or {}).items():
        ids.setdefault(token["content"], int(index))
        added[token["content"]] = {**_PLAIN, **token, "id": ids[token["content"]]}
    for key, value in config.items():
        text = _text_of(value) if key.endswith("_token") else None
        if text is not None and text in ids and text not in added:
            added[text] = {**_PLAIN, "content": text, "special": True, "id": ids[text]}
    pipeline["added_tokens"] = sorted(added.values(), key=lambda token: token["id"])
    return ids


def _text_of(token: Any) -> str | None:
    """A configuration writes a token as its text, or as an object with flags."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None
