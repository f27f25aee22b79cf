"""What a tokenizer is, apart from where it lies: its serialized pipeline, its control tokens, a digest of both."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Literal, get_args

import orjson

SpecialTokens = Literal["eos", "bos", "bos_eos", "none", "tokenizer_default"]
SPECIAL_TOKENS = get_args(SpecialTokens)


@dataclass(frozen=True)
class Token:
    """A control token: its text and its id."""

    text: str
    id: int


@dataclass(frozen=True)
class Frame:
    """The control tokens that every document gets, before and after its text."""

    prefix: tuple[Token, ...] = ()
    suffix: tuple[Token, ...] = ()

    @classmethod
    def of(cls, special_tokens: SpecialTokens, bos: Token | None, eos: Token | None, name: str) -> Frame | None:
        """The frame that ``special_tokens`` asks for, None for the tokenizer's own.

        Raises:
            ValueError: where the tokenizer has no such token; names the ways out.
        """
        if special_tokens == "tokenizer_default":
            return None
        wanted = () if special_tokens == "none" else special_tokens.split("_")
        for kind, token in (("bos", bos), ("eos", eos)):
            if kind in wanted and token is None:
                raise ValueError(
                    f"special_tokens={special_tokens!r}: tokenizer {name!r} names no {kind} token that is in its "
                    f'vocabulary; pass special_tokens="none", or name one: "{kind}_token" in tokenizer_config.json, or '
                    f"PreTrainedTokenizerFast(tokenizer_object=..., {kind}_token=...)"
                )
        prefix = (bos,) if bos is not None and "bos" in wanted else ()
        suffix = (eos,) if eos is not None and "eos" in wanted else ()
        return cls(prefix, suffix)


@dataclass(frozen=True, eq=False)
class Content:
    """A tokenizer's content, which is all that its ids depend on. Contents with the same digest are equal.

    Attributes:
        name: what the user called it, for messages.
        json: the ``tokenizer.json`` text, without truncation and padding, with a post-processor that makes the frame;
            None for a slow tokenizer.
        slow: a slow transformers tokenizer, where ``json`` is None.
        frame: the control tokens around every document, None where the tokenizer itself decides.
        digest: 16 hex digits, equal for equal content wherever it lies and however it was handed over.
        control_tokens: the texts of the added tokens of ``json``.
    """

    name: str
    json: str | None
    slow: Any
    frame: Frame | None
    digest: str
    control_tokens: tuple[str, ...] = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Content) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    @classmethod
    def from_pipeline(
        cls,
        name: str,
        pipeline: dict[str, Any],
        bos: Token | None,
        eos: Token | None,
        special_tokens: SpecialTokens,
    ) -> Content:
        """From a parsed ``tokenizer.json`` and the control tokens that its configuration names.

        Raises:
            ValueError: for one that is not a tokenizer, whose ids are random, or that lacks a control token.
        """
        model = pipeline.get("model")
        if not isinstance(model, dict):
            raise ValueError(f'tokenizer {name!r}: its tokenizer.json has no "model", so it is not a tokenizer')
        if model.get("dropout"):
            raise ValueError(
                f"tokenizer {name!r} has BPE dropout {model['dropout']}, so its ids are random and no run could be "
                'repeated; set "dropout" to null in its tokenizer.json'
            )
        frame = Frame.of(special_tokens, bos, eos, name)
        pipeline = {**pipeline, "truncation": None, "padding": None}
        if frame is not None:
            pipeline["post_processor"] = _template(frame)
        contents = [token["content"] for token in pipeline.get("added_tokens") or []]
        added = tuple(text for text in contents if isinstance(text, str))
        return cls(name, orjson.dumps(pipeline).decode(), None, frame, _digest(pipeline), added)

    @classmethod
    def from_slow(cls, name: str, tokenizer: Any, special_tokens: SpecialTokens) -> Content:
        """From a slow transformers tokenizer.

        Raises:
            ValueError: where it lacks a control token.
        """
        frame = Frame.of(special_tokens, token_of(tokenizer, "bos"), token_of(tokenizer, "eos"), name)
        described = {
            "class": f"{type(tokenizer).__module__}.{type(tokenizer).__qualname__}",
            "vocab": tokenizer.get_vocab(),
            "added": {str(index): repr(token) for index, token in tokenizer.added_tokens_decoder.items()},
            "arguments": {key: repr(value) for key, value in tokenizer.init_kwargs.items() if key not in _PLACES},
            "frame": repr(frame),
        }
        digest = hashlib.sha256(orjson.dumps(described, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]
        return cls(name, None, tokenizer, frame, digest)


def token_of(tokenizer: Any, kind: str) -> Token | None:
    """The ``"bos"`` or ``"eos"`` token of a transformers tokenizer, None where it has none."""
    text, index = getattr(tokenizer, f"{kind}_token", None), getattr(tokenizer, f"{kind}_token_id", None)
    return None if text is None or index is None else Token(str(text), index)


_PLACES = ("name_or_path", "vocab_file", "merges_file", "tokenizer_file", "cache_dir", "special_tokens_map_file")


def _template(frame: Frame) -> dict[str, Any] | None:
    """The post-processor of a frame, as ``tokenizer.json`` writes it."""
    tokens = {token.text: token for token in frame.prefix + frame.suffix}
    if not tokens:
        return None
    before = [{"SpecialToken": {"id": token.text, "type_id": 0}} for token in frame.prefix]
    after = [{"SpecialToken": {"id": token.text, "type_id": 0}} for token in frame.suffix]
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    return {
        "type": "TemplateProcessing",
        "single": [*before, first, *after],
        "pair": [*before, first, second, *after],
        "special_tokens": {
            text: {"id": text, "ids": [token.id], "tokens": [token.text]} for text, token in tokens.items()
        },
    }


def _digest(pipeline: dict[str, Any]) -> str:
    """A digest that does not depend on how ``tokenizer.json`` was written: key order, spaces, defaults, old merges."""
    model = dict(pipeline["model"])
    vocab, merges = model.pop("vocab", None), model.pop("merges", None)
    if merges and isinstance(merges[0], str):  # before tokenizers 0.20: "a b" instead of ["a", "b"]
        merges = [merge.split(" ") for merge in merges]
    if isinstance(vocab, list):  # with scores, whose last digits change when tokenizers reads and writes them
        vocab = [[token, f"{score:.9g}"] for token, score in vocab]
    rest = _without_defaults({**pipeline, "model": model})
    parts = [orjson.dumps(part, option=orjson.OPT_SORT_KEYS) for part in (rest, vocab, merges)]
    return hashlib.sha256(b"\n".join(parts)).hexdigest()[:16]


def _without_defaults(value: Any) -> Any:
    """Without null and false, which are what newer versions write for options that older files lack."""
    if isinstance(value, dict):
        kept = ((key, _without_defaults(part)) for key, part in value.items() if part is not None and part is not False)
        return dict(kept)
    return [_without_defaults(part) for part in value] if isinstance(value, list) else value
