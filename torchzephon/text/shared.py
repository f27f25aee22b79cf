"""The encoder that a graph holds: plain data that copies and pickles, and the process's encoder behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchzephon.data.ragged import Ragged
from torchzephon.errors import DataError
from torchzephon.text.choice import choose_backend, encoder_for, reference_for
from torchzephon.text.content import Content
from torchzephon.text.watch import first_difference, watched_rows

_WATCHED_CHARS = 1 << 20  # of a longer text only the beginning is checked: the reference needs 0.1 s for this much


class SharedEncoder:
    """Encodes with the chosen backend, and watches it if it is not the reference. Thread-safe; lanes share it.

    Args:
        content: the tokenizer.
        backend: ``"auto"``, ``"fastokens"``, ``"tokenizers"`` or ``"transformers"``.
        allow_special: whether control tokens spelled out in a text become control tokens.

    Raises:
        ValueError: for a backend that cannot serve the tokenizer.

    Attributes:
        name: library and version of the chosen backend.
    """

    def __init__(self, content: Content, *, backend: str, allow_special: bool) -> None:
        self.content = content
        self.allow_special = allow_special
        self.backend = choose_backend(content, backend, allow_special=allow_special)
        self.name: str = self._encoder().name

    def encode(self, texts: list[str], locate: Callable[[int], str]) -> Ragged:
        """The ids of each text.

        Args:
            texts: without lone surrogates.
            locate: where the text of that index came from, for messages.

        Raises:
            DataError: for a text of which the backend's ids are not the reference's.
        """
        ids: Ragged = self._encoder().encode(texts)
        if self.backend == "fastokens":
            for row in watched_rows(ids).tolist():
                self._check(texts[row], ids[row], row, locate)
        return ids

    def frame(self, special_tokens: str) -> tuple[list[int], list[int]]:
        """The control tokens that go before and after every document.

        Args:
            special_tokens: ``"eos"``, ``"bos"``, ``"bos_eos"``, ``"none"`` or ``"tokenizer_default"``.

        Raises:
            ValueError: where the tokenizer has no such token; names the ways out.
        """
        if special_tokens == "tokenizer_default":
            return self._default_frame()
        wanted = [] if special_tokens == "none" else special_tokens.split("_")
        for kind in wanted:
            if getattr(self.content, kind) is None:
                raise ValueError(
                    f"special_tokens={special_tokens!r}: tokenizer {self.content.name!r} names no {kind} token in its "
                    f'vocabulary; pass special_tokens="none", or name one ("{kind}_token" in tokenizer_config.json, '
                    f"or PreTrainedTokenizerFast(tokenizer_object=..., {kind}_token=...))"
                )
        ids = {kind: [getattr(self.content, kind)] for kind in wanted}
        return ids.get("bos", []), ids.get("eos", [])

    def _default_frame(self) -> tuple[list[int], list[int]]:
        reference = self._reference()
        frames = []
        for text in ("a", "b c", "1"):
            body, framed = reference.encode_serially([text])[0].tolist(), reference.encode_framed(text)
            starts = (at for at in range(len(framed) - len(body) + 1) if framed[at : at + len(body)] == body)
            start = next(starts, None)
            frames.append(None if start is None else (framed[:start], framed[start + len(body) :]))
        if frames[0] is None or frames.count(frames[0]) < len(frames):
            raise ValueError(
                f"special_tokens='tokenizer_default': tokenizer {self.content.name!r} does more than to put the same "
                'tokens around every text; pass special_tokens="none", "eos", "bos" or "bos_eos"'
            )
        return frames[0]

    def _encoder(self) -> Any:
        return encoder_for(self.content, self.backend, allow_special=self.allow_special)

    def _reference(self) -> Any:
        return reference_for(self.content, allow_special=self.allow_special)

    def _check(self, text: str, got: Any, row: int, locate: Callable[[int], str]) -> None:
        if len(text) > _WATCHED_CHARS:
            text = text[:_WATCHED_CHARS]
            got = self._encoder().encode([text])[0]
        expected = self._reference().encode_serially([text])[0]
        at = first_difference(got, expected)
        if at is None:
            return
        window = slice(max(0, at - 3), at + 5)
        char = self._reference().position(text, at)
        raise DataError(
            f"{locate(row)}: {self.name} encodes this text differently from {self._reference().name}, from token {at} "
            f"on: {got[window].tolist()} instead of {expected[window].tolist()} (tokens {window.start} to "
            f"{window.stop - 1}), at {text[max(0, char - 40) : char + 40]!r}. Use "
            'TextTokenizer(..., backend="tokenizers"), which defines the ids, and tell the authors of fastokens'
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> SharedEncoder:
        return self
