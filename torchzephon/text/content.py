"""What a tokenizer is, apart from where it lies: its serialized pipeline, its control tokens, a digest of both."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import orjson


@dataclass(frozen=True, eq=False)
class Content:
    """A tokenizer's content, which is all that its ids depend on. Contents with the same digest are equal.

    Attributes:
        name: what the user called it, for messages.
        json: the ``tokenizer.json`` text without truncation and padding; None for a slow tokenizer.
        slow: a slow transformers tokenizer, where ``json`` is None.
        bos: id of the beginning-of-sequence token, None where the tokenizer names none.
        eos: id of the end-of-sequence token, None where the tokenizer names none.
        digest: 16 hex digits, equal for equal content wherever it lies and however it was handed over.
    """

    name: str
    json: str | None
    slow: Any
    bos: int | None
    eos: int | None
    digest: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Content) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    @classmethod
    def from_pipeline(cls, name: str, pipeline: dict[str, Any], bos: int | None, eos: int | None) -> Content:
        """From a parsed ``tokenizer.json``.

        Raises:
            ValueError: for one that is not a tokenizer, or whose ids are random.
        """
        model = pipeline.get("model")
        if not isinstance(model, dict):
            raise ValueError(f'tokenizer {name!r}: its tokenizer.json has no "model", so it is not a tokenizer')
        if model.get("dropout"):
            raise ValueError(
                f"tokenizer {name!r} has BPE dropout {model['dropout']}, so its ids are random and no run could be "
                'repeated; set "dropout" to null in its tokenizer.json'
            )
        pipeline = {**pipeline, "truncation": None, "padding": None}
        return cls(name, orjson.dumps(pipeline).decode(), None, bos, eos, _digest(pipeline))

    @classmethod
    def from_slow(cls, name: str, tokenizer: Any) -> Content:
        """From a slow transformers tokenizer."""
        described = {
            "class": f"{type(tokenizer).__module__}.{type(tokenizer).__qualname__}",
            "vocab": tokenizer.get_vocab(),
            "added": {str(index): repr(token) for index, token in tokenizer.added_tokens_decoder.items()},
            "arguments": {key: repr(value) for key, value in tokenizer.init_kwargs.items() if key not in _PLACES},
        }
        digest = hashlib.sha256(orjson.dumps(described, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]
        return cls(name, None, tokenizer, tokenizer.bos_token_id, tokenizer.eos_token_id, digest)


_PLACES = ("name_or_path", "vocab_file", "merges_file", "tokenizer_file", "cache_dir", "special_tokens_map_file")


def _digest(pipeline: dict[str, Any]) -> str:
    """A digest that does not depend on how ``tokenizer.json`` was written: key order, spaces, defaults, old merges."""
    model = dict(pipeline["model"])
    vocab, merges = model.pop("vocab", None), model.pop("merges", None)
    if merges and isinstance(merges[0], str):  # before tokenizers 0.20: "a b" instead of ["a", "b"]
        merges = [merge.split(" ") for merge in merges]
    rest = _without_defaults({**pipeline, "model": model})
    parts = [orjson.dumps(part, option=orjson.OPT_SORT_KEYS) for part in (rest, vocab, merges)]
    return hashlib.sha256(b"\n".join(parts)).hexdigest()[:16]


def _without_defaults(value: Any) -> Any:
    """Without null and false, which are what newer versions write for options that older files lack."""
    if isinstance(value, dict):
        kept = ((key, _without_defaults(part)) for key, part in value.items() if part is not None and part is not False)
        return dict(kept)
    return [_without_defaults(part) for part in value] if isinstance(value, list) else value
