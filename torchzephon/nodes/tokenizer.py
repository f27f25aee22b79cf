"""TextTokenizer: texts in, token ids out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
from torchdata.nodes import BaseNode

from torchzephon.curriculum.checks import check_choice
from torchzephon.data.background import Task
from torchzephon.data.block import MISSING, Block, Column
from torchzephon.data.ragged import Ragged
from torchzephon.errors import DataError
from torchzephon.nodes.graph import Estimate
from torchzephon.nodes.look_ahead import LookAhead
from torchzephon.nodes.skips import Skips
from torchzephon.text.choice import BACKENDS
from torchzephon.text.content import SPECIAL_TOKENS, SpecialTokens
from torchzephon.text.cutting import split, truncate
from torchzephon.text.load import load_content
from torchzephon.text.shared import SharedEncoder

_BYTES_PER_TOKEN = 4.0  # of English and of code, with vocabularies of 32k to 256k


class TextTokenizer(BaseNode[Block]):
    """Encodes a text field of every sample into token ids.

    Yields Blocks with the column ``input_ids`` (:class:`Ragged` of int32) and the columns in ``keep``. The ids are
    those of the Hugging Face tokenizer for every text; an empty text is a document of control tokens alone. The
    encoder is shared by all lanes of a process, and takes as many threads as its share of the node's cores.

    Args:
        source: yields Blocks, sample dicts, or lists of sample dicts.
        tokenizer: a directory with ``tokenizer.json`` (and ``tokenizer_config.json``, which names the control
            tokens), that file, a Hub id, a ``tokenizers.Tokenizer`` or a transformers tokenizer. Its own truncation
            and padding are not used.
        field: the field that holds the text: ``str``, or ``bytes`` that are UTF-8.
        keep: other fields to pass on unchanged.
        special_tokens: the control tokens that every document gets: ``"eos"`` after it, ``"bos"`` before it,
            ``"bos_eos"``, ``"none"``, or ``"tokenizer_default"``: what the tokenizer's post-processor adds.
        allow_special: whether control tokens that are spelled out in the text become control tokens, as they do in
            transformers. Pass False for text that strangers wrote. (``split_special_tokens=True`` of transformers.)
        max_length: most tokens in a document, control tokens included; needs another ``overflow``.
        overflow: what happens to longer documents: ``"keep"`` (they are passed on as they are), ``"truncate"`` (the
            text's first tokens remain, with the same control tokens) or ``"split"`` (several documents that together
            are the long one with its control tokens; each has the fields in ``keep``).
        backend: ``"auto"`` is ``"fastokens"`` where that is installed and gives the same ids, else ``"tokenizers"``;
            ``"transformers"`` for tokenizers without ``tokenizer.json``.
        on_error: ``"raise"`` stops at a sample without a usable text; ``"skip"`` drops such samples, logs the 1st,
            2nd, 4th, 8th... and counts them in the state as ``"skipped"``.

    Raises:
        ValueError: for arguments that contradict each other or the tokenizer.
        DataError: from ``next``: the field is missing, null, not a text, or has lone surrogates; a kept field is
            missing; or the fast backend's ids are not the reference's (one document in 4096 is checked).
    """

    passes_blocks = True
    SOURCE_KEY = "source"

    def __init__(
        self,
        source: BaseNode[Any],
        tokenizer: str | os.PathLike[str] | Any,
        *,
        field: str = "text",
        keep: Sequence[str] = (),
        special_tokens: SpecialTokens = "eos",
        allow_special: bool = True,
        max_length: int | None = None,
        overflow: Literal["keep", "truncate", "split"] = "keep",
        backend: Literal["auto", "fastokens", "tokenizers", "transformers"] = "auto",
        on_error: Literal["raise", "skip"] = "raise",
    ) -> None:
        super().__init__()
        if not isinstance(source, BaseNode):
            raise TypeError(f"source must be a node, got {type(source).__name__}")
        check_choice("special_tokens", special_tokens, SPECIAL_TOKENS)
        check_choice("overflow", overflow, ("keep", "truncate", "split"))
        check_choice("backend", backend, BACKENDS)
        check_choice("on_error", on_error, ("raise", "skip"))
        if isinstance(keep, str):
            raise TypeError(f"keep must be a sequence of field names, got the string {keep!r}; write ({keep!r},)")
        if "input_ids" in keep:
            raise ValueError("keep must not name 'input_ids', which is where the token ids go")
        if max_length is not None and (not isinstance(max_length, int) or isinstance(max_length, bool)):
            raise TypeError(f"max_length must be an int, got {type(max_length).__name__}")
        if (max_length is None) != (overflow == "keep"):
            raise ValueError(
                f"max_length={max_length!r} contradicts overflow={overflow!r}: pass max_length together with "
                'overflow="truncate" or overflow="split", or neither'
            )
        self.source = source
        self.field = field
        self.keep = tuple(keep)
        self.special_tokens = special_tokens
        self.allow_special = allow_special
        self.max_length = max_length
        self.overflow = overflow
        self.on_error = on_error
        self._skips = Skips(source)
        self._blocks: LookAhead[tuple[Block, Ragged | None]] = LookAhead(source)
        content = load_content(tokenizer, special_tokens)
        self.encoder = SharedEncoder(content, backend=backend, allow_special=allow_special)
        prefix, self._suffix = self.encoder.frame_lengths() if overflow == "truncate" else (0, 0)
        if max_length is not None and max_length <= prefix + self._suffix:
            raise ValueError(
                f"max_length={max_length} leaves no room for text beside {prefix + self._suffix} control tokens"
            )

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Resets the source; the encoder has no state."""
        super().reset(initial_state)
        self._blocks.clear()
        self._skips.reset(initial_state)
        self.source.reset(None if initial_state is None else initial_state[self.SOURCE_KEY])

    def next(self) -> Block:
        """The next block of which any sample can be used."""
        while True:
            pulled = self._blocks.pull()
            block, ids = self._encode(pulled) if isinstance(pulled, Block) else pulled.result()
            if ids is None:  # to look at every text first takes up to a quarter of the time
                block, ids = self._encode_usable(block)
            if self.encoder.backend == "fastokens":  # others hold the interpreter, so that nothing would be gained
                self._blocks.look(self._begin)
            if len(block):
                return self._block(block, ids)

    def get_state(self) -> dict[str, Any]:
        """The source's state, and the count of skipped samples when there are any."""
        return {self.SOURCE_KEY: self._blocks.state(), **self._skips.state()}

    @property
    def skipped(self) -> int:
        """Samples passed over so far in this cycle."""
        return self._skips.count

    def describe(self) -> dict[str, Any]:
        """The arguments; the tokenizer by a digest of its content and control tokens, the backend by its version."""
        return {
            "tokenizer": self.encoder.content.digest,
            "backend": self.encoder.name,
            "field": self.field,
            "keep": list(self.keep),
            "special_tokens": self.special_tokens,
            "allow_special": self.allow_special,
            "max_length": self.max_length,
            "overflow": self.overflow,
        }

    def estimate(self, source: Estimate | None) -> Estimate | None:
        """A token for every four bytes, and one for the end of each sample."""
        if source is None:
            return None
        tokens = source.bytes / _BYTES_PER_TOKEN + source.samples
        return Estimate(items=source.items, samples=source.samples, bytes=source.bytes, tokens=tokens)

    def summary(self) -> str:
        """The encoder, for the log line of the first iteration."""
        return f"encoder {self.encoder.name}"

    def _begin(self, block: Block) -> Task[tuple[Block, Ragged | None]]:
        """Encodes a block in the background, while the one before it is packed and trained on."""
        return Task(partial(self._encode, block), "encoder")

    def _encode(self, block: Block) -> tuple[Block, Ragged | None]:
        """The block without its texts, which take memory, and their ids; as it is, and None, if not all are texts."""
        texts = block.columns.get(self.field)
        if not isinstance(texts, list):
            return block, None
        try:
            ids = self.encoder.encode(texts, block.locate)
        except (TypeError, UnicodeEncodeError):
            return block, None
        return self._without_texts(block), ids

    def _encode_usable(self, block: Block) -> tuple[Block, Ragged]:
        """The samples with a usable text, without it, and their ids; deals with the others as ``on_error`` says."""
        block = self._usable(block)
        texts: Any = block.columns[self.field]
        return self._without_texts(block), self.encoder.encode(texts, block.locate)

    def _without_texts(self, block: Block) -> Block:
        kept = ((name, column) for name, column in block.columns.items() if name != self.field or name in self.keep)
        return block.replace(dict(kept))

    def _block(self, block: Block, ids: Ragged) -> Block:
        """The block to yield."""
        kept = {name: self._kept(block, name) for name in self.keep}
        if self.overflow == "truncate" and self.max_length is not None:
            ids = truncate(ids, self.max_length, self._suffix)
        if self.overflow != "split" or self.max_length is None:
            return block.replace({"input_ids": ids, **kept})
        pieces, rows = split(ids, self.max_length)
        block = block.replace(kept)
        if len(pieces) > len(ids):
            block = block.take(rows)
        return block.replace({"input_ids": pieces, **block.columns})

    def _usable(self, block: Block) -> Block:
        """The samples with a usable text, which is then a ``str``; deals with the others as ``on_error`` says."""
        column: Any = block.columns.get(self.field, [MISSING] * len(block))
        texts: list[str] = []
        rows: list[int] = []
        for row, value in enumerate(column):
            text, problem = _text_of(value)
            if problem is None:
                texts.append(text)
                rows.append(row)
            else:
                self._refuse(block, row, problem)
        usable = block.take(np.asarray(rows, np.intp))
        return usable.replace({**usable.columns, self.field: texts})

    def _refuse(self, block: Block, row: int, problem: str) -> None:
        failure = f"{block.locate(row)}: field {self.field!r} {problem}{block.unread(row, self.field)}"
        if self.on_error == "raise":
            have = ", ".join(repr(name) for name in block[row])
            raise DataError(
                f"{failure}; the sample has the fields {have or '(none)'}. Name another with "
                'TextTokenizer(..., field=...), repair the sample, or pass TextTokenizer(..., on_error="skip")',
            )
        self._skips.add(failure)

    def _kept(self, block: Block, name: str) -> Column:
        column: Column = block.columns.get(name, [MISSING])
        if isinstance(column, list):
            for row, value in enumerate(column):
                if value is MISSING:
                    have = ", ".join(repr(field) for field in dict.fromkeys([self.field, *block[row]]))
                    raise DataError(f"{block.locate(row)}: no field {name!r} to keep; the sample has {have}")
        return column


def _text_of(value: Any) -> tuple[str, str | None]:
    """A field's text, and what is wrong with it, None if nothing is."""
    if value is MISSING:
        return "", "is missing"
    if value is None:
        return "", "is null"
    if isinstance(value, (bytes, bytearray, memoryview)):
        try:
            return bytes(value).decode(), None
        except UnicodeDecodeError as error:
            return "", f"is not UTF-8: {error.reason} at byte {error.start}"
    if not isinstance(value, str):
        kind = type(value).__name__
        if isinstance(value, Mapping):
            kind += f" with {', '.join(map(repr, value)):.200}, of which a path names one, as in "
            kind += 'Dataset(columns={"text": "doc.body"})'
        return "", f"is not a text but {kind}"
    try:
        value.encode()
    except UnicodeEncodeError as error:
        return "", f"has a lone surrogate, {value[error.start]!a} at character {error.start}, which no tokenizer takes"
    return str(value), None
