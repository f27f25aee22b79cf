"""Joining columns that were read from several shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from torchzephon.data.block import MISSING, Column
from torchzephon.data.ragged import Ragged


def join_columns(
    parts: Sequence[Mapping[str, Column]], which: NDArray[np.intp], rows: NDArray[np.intp]
) -> dict[str, Column]:
    """The columns whose row ``i`` is row ``rows[i]`` of ``parts[which[i]]``.

    A column is Ragged where all parts have it as Ragged of one dtype. Otherwise it is a list: of the objects that the
    parts have, an array for a row of a Ragged, and ``MISSING`` for the rows of a part without that column. Arrays are
    copies.

    Args:
        parts: at least one.
        which: intp ``[n]``.
        rows: intp ``[n]``.
    """
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: _join([part.get(name) for part in parts], which, rows) for name in names}


def own_columns(columns: Mapping[str, Column]) -> dict[str, Column]:
    """The same columns; a Ragged that shares its memory is copied."""
    return {name: _owned(column) for name, column in columns.items()}


def _owned(column: Column) -> Column:
    return column.owned() if isinstance(column, Ragged) else column


def _join(parts: Sequence[Column | None], which: NDArray[np.intp], rows: NDArray[np.intp]) -> Column:
    ragged = [part for part in parts if isinstance(part, Ragged)]
    if len(ragged) == len(parts) and len({part.values.dtype for part in ragged}) == 1:
        return Ragged.gather(ragged, which, rows)
    lists = [None if part is None else part if isinstance(part, list) else list(_owned(part)) for part in parts]
    return [
        MISSING if (values := lists[part]) is None else values[row]
        for part, row in zip(which.tolist(), rows.tolist(), strict=True)
    ]
