"""Finding a tokenizer's content: in a directory, a file, the Hub's cache, or an object."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import orjson

from torchzephon.text.content import Content

_PIPELINE = "tokenizer.json"
_CONFIGS = ("special_tokens_map.json", "tokenizer_config.json")  # the later one wins
_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


def load_content(tokenizer: Any) -> Content:
    """The content of whatever ``TextTokenizer(tokenizer=...)`` takes.

    transformers is imported only for places without a ``tokenizer.json``.

    Args:
        tokenizer: a directory, or a ``tokenizer.json`` with ``tokenizer_config.json`` beside it for the control
            tokens; a Hub id; a ``tokenizers.Tokenizer``; a fast or slow transformers tokenizer.

    Raises:
        ValueError: where there is no tokenizer, or none whose ids can be repeated.
        TypeError: for anything else.
    """
    if isinstance(tokenizer, (str, os.PathLike)):
        return _from_place(os.fspath(tokenizer))
    name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
    if hasattr(tokenizer, "backend_tokenizer"):
        pipeline = orjson.loads(tokenizer.backend_tokenizer.to_str())
        return Content.from_pipeline(name, pipeline, tokenizer.bos_token_id, tokenizer.eos_token_id)
    if hasattr(tokenizer, "to_str") and hasattr(tokenizer, "encode_batch"):
        return Content.from_pipeline(name, orjson.loads(tokenizer.to_str()), None, None)
    if hasattr(tokenizer, "get_vocab") and hasattr(tokenizer, "added_tokens_decoder"):
        return Content.from_slow(name, tokenizer)
    raise TypeError(
        "tokenizer must be a path, a Hub id, a tokenizers.Tokenizer or a transformers tokenizer, "
        f"got {type(tokenizer).__name__}"
    )


def _from_place(place: str) -> Content:
    path = Path(place).expanduser()
    if path.is_file():
        return _from_files(place, path, [path.parent / config for config in _CONFIGS])
    if path.is_dir():
        if (path / _PIPELINE).is_file():
            return _from_files(place, path / _PIPELINE, [path / config for config in _CONFIGS])
        return _by_transformers(place, "it has no tokenizer.json, and transformers finds no other tokenizer in it")
    if not _HUB_ID.fullmatch(place):
        raise ValueError(f"tokenizer {place!r}: no such file or directory")
    return _from_hub(place)


def _from_hub(name: str) -> Content:
    """From the Hub's cache on this machine, else from the Hub, only the files that are needed."""
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
    except ImportError:
        raise ValueError(
            f"tokenizer {name!r}: no such file or directory, and for a Hub id huggingface_hub is needed: "
            "pip install huggingface_hub"
        ) from None

    def fetch(file: str) -> Path:
        try:
            return Path(hf_hub_download(name, file, local_files_only=True))
        except LocalEntryNotFoundError:
            return Path(hf_hub_download(name, file))

    missing = "no such file or directory, and as a Hub id it is neither in the cache of this machine nor to be had"
    try:
        pipeline = fetch(_PIPELINE)
    except LocalEntryNotFoundError as error:  # there is no way to the Hub
        raise ValueError(f"tokenizer {name!r}: {missing} ({_first_line(error)}); pass a directory") from error
    except EntryNotFoundError:
        return _by_transformers(name, "its repository has no tokenizer.json, and transformers finds no other tokenizer")
    except Exception as error:
        raise ValueError(f"tokenizer {name!r}: {missing} ({_first_line(error)})") from error
    configs = []
    for config in _CONFIGS:
        try:
            configs.append(fetch(config))
        except EntryNotFoundError:
            continue
    return _from_files(name, pipeline, configs)


def _by_transformers(place: str, otherwise: str) -> Content:
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise ValueError(
            f"tokenizer {place!r} has no tokenizer.json; other tokenizers need transformers: pip install transformers"
        ) from None
    try:
        tokenizer = AutoTokenizer.from_pretrained(place)
    except Exception as error:
        raise ValueError(f"tokenizer {place!r}: {otherwise} ({_first_line(error)})") from error
    return load_content(tokenizer)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _from_files(name: str, pipeline_file: Path, config_files: list[Path]) -> Content:
    pipeline = _read(name, pipeline_file)
    config: dict[str, Any] = {}
    for file in config_files:
        if file.is_file():
            config |= {key: value for key, value in _read(name, file).items() if value is not None}
    ids = _configure(pipeline, config)
    bos, eos = (ids.get(_text_of(config.get(key)) or "") for key in ("bos_token", "eos_token"))
    return Content.from_pipeline(name, pipeline, bos, eos)


def _read(name: str, file: Path) -> dict[str, Any]:
    try:
        value = orjson.loads(file.read_bytes())
    except orjson.JSONDecodeError as error:
        raise ValueError(f"tokenizer {name!r}: {file} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"tokenizer {name!r}: {file} must hold a JSON object, not a {type(value).__name__}")
    return value


def _configure(pipeline: dict[str, Any], config: dict[str, Any]) -> dict[str, int]:
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


_PLAIN = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}


def _text_of(token: Any) -> str | None:
    """Configurations write a token as its text or as an object with flags."""
    return token.get("content") if isinstance(token, dict) else token if isinstance(token, str) else None
