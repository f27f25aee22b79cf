"""Columns of token ids and of loss masks, checked and in one type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchzephon.data.block import MISSING, Block
from torchzephon.data.ragged import Ragged
from torchzephon.errors import DataError

_LARGEST = np.iinfo(np.int32).max
_NO_TOKENS = "have a TextTokenizer make it, or name the field with the token ids, SequencePacker(field=...)"
_NO_MASK = "name the mask's field, SequencePacker(loss_mask_field=...), or have TextTokenizer(keep=...) pass it on"


def token_column(block: Block, field: str) -> Ragged:
    """The token ids of a block's samples.

    Args:
        block: has a column ``field``: a Ragged, an integer array ``[n, m]``, or a list of arrays or lists of ints.
        field: the column's name.

    Returns:
        Ragged of int32, ``n`` rows.

    Raises:
        DataError: a sample has no such field, or null, or something that is not a list of ids in ``[0, 2**31)``.
    """
    column = _integer_column(block, field)
    values = column.flat
    if len(values):
        limits = np.iinfo(values.dtype)
        low = int(values.min()) if limits.min < 0 else 0
        high = int(values.max()) if limits.max > _LARGEST else 0
        if low < 0 or high > _LARGEST:
            index = int(values.argmin() if low < 0 else values.argmax())
            row, place = _row_of(column, index)
            raise DataError(
                f"{block.locate(row)}: field {field!r} has token id {values[index]} at position {place}: ids must lie "
                "in [0, 2**31)"
            )
    if values.dtype == np.int32:
        return column
    return Ragged(values.astype(np.int32), column.offsets - column.offsets[0])


def mask_column(block: Block, field: str, tokens: Ragged) -> Ragged:
    """The loss masks of a block's samples: which tokens are to be learned.

    Args:
        block: has a column ``field`` with one bool, or 0 or 1, for each token.
        field: the column's name.
        tokens: the samples' token ids, ``n`` rows.

    Returns:
        Ragged of bool, ``n`` rows as long as those of ``tokens``.

    Raises:
        DataError: a sample has no such field, or null, or other values, or another number of them.
    """
    column = _integer_column(block, field, booleans=True)
    differing = np.flatnonzero(column.lengths != tokens.lengths)
    if len(differing):
        row = int(differing[0])
        raise DataError(
            f"{block.locate(row)}: field {field!r} has {len(column[row])} values for {len(tokens[row])} tokens"
        )
    values = column.flat
    if values.dtype != np.bool_:
        odd = np.flatnonzero((values != 0) & (values != 1))
        if len(odd):
            row, place = _row_of(column, int(odd[0]))
            raise DataError(
                f"{block.locate(row)}: field {field!r} has {values[odd[0]]} at position {place}: a loss mask has "
                "bools, or 0 and 1"
            )
        values = values.astype(np.bool_)
    return Ragged(values, column.offsets - column.offsets[0])


def _integer_column(block: Block, field: str, *, booleans: bool = False) -> Ragged:
    kinds = "iub" if booleans else "iu"
    try:
        column = block.columns[field]
    except KeyError:
        raise DataError(
            f"{block.locate(0)}: no field {field!r}: there are {sorted(block.columns)}; "
            f"{_NO_MASK if booleans else _NO_TOKENS}"
        ) from None
    if isinstance(column, list):
        column = _from_rows(block, field, column, kinds)
    elif not isinstance(column, Ragged):
        if column.ndim != 2:
            raise DataError(
                f"{block.locate(0)}: field {field!r} is one {column.dtype} a sample, expected a list of integers"
            )
        column = Ragged(column.reshape(-1), np.arange(len(column) + 1, dtype=np.int64) * column.shape[1])
    if len(column.flat) and column.values.dtype.kind not in kinds:
        raise DataError(f"{block.locate(0)}: field {field!r} has {column.values.dtype} values, expected integers")
    return column


def _from_rows(block: Block, field: str, rows: Sequence[Any], kinds: str) -> Ragged:
    arrays: list[NDArray[Any]] = []
    for index, row in enumerate(rows):
        array = row if isinstance(row, np.ndarray) else _array(row)
        if array is None or array.ndim != 1 or (array.dtype.kind not in kinds and len(array)):
            told = f"{_told(row)}{block.unread(index, field)}"
            raise DataError(f"{block.locate(index)}: field {field!r} {told}, expected a list of integers")
        arrays.append(array)
    filled = {array.dtype for array in arrays if len(array)}
    # ids of several types meet in int64; what does not fit there turns negative, and is found out by the range check
    dtype = filled.pop() if len(filled) == 1 else np.dtype(np.int64)
    offsets = np.zeros(len(arrays) + 1, np.int64)
    np.cumsum([len(array) for array in arrays], out=offsets[1:])
    if not arrays:
        return Ragged(np.zeros(0, dtype), offsets)
    return Ragged(np.concatenate(arrays, dtype=dtype, casting="unsafe"), offsets)


def _array(row: Any) -> NDArray[Any] | None:
    try:
        return np.asarray(row)
    except (ValueError, TypeError, OverflowError):
        return None


def _told(row: Any) -> str:
    if row is None:
        return "is null"
    if row is MISSING:
        return "is missing"
    if isinstance(row, np.ndarray):
        return f"is an array {list(row.shape)} of {row.dtype}"
    text = repr(row)
    return f"is {text if len(text) <= 60 else text[:57] + '...'}"


def _row_of(column: Ragged, index: int) -> tuple[int, int]:
    place = index + int(column.offsets[0])
    row = int(np.searchsorted(column.offsets, place, side="right")) - 1
    return row, place - int(column.offsets[row])
