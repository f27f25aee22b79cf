"""Truncating and splitting on flat buffers, against the obvious loops."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from torchzephon.data.ragged import Ragged
from torchzephon.text.cutting import split, truncate

ROWS = st.lists(st.lists(st.integers(0, 99), max_size=12), max_size=8)


def ragged(rows, before):
    """Rows of a Ragged that begins in the middle of its values."""
    return Ragged.from_rows([[7] * before, *rows], np.int32)[1:]


@settings(deadline=None)
@given(ROWS, st.integers(1, 9), st.integers(0, 3), st.integers(0, 4))
def test_truncate(rows, length, suffix, before):
    suffix = min(suffix, length - 1)
    ids = ragged(rows, before)
    got = truncate(ids, length, suffix)
    expected = [row if len(row) <= length else row[: length - suffix] + row[len(row) - suffix :] for row in rows]
    assert [row.tolist() for row in got] == expected
    assert got.values.dtype == np.int32
    if all(len(row) <= length for row in rows):
        assert got is ids


@settings(deadline=None)
@given(ROWS, st.integers(1, 9), st.integers(0, 4))
def test_split(rows, length, before):
    pieces, owners = split(ragged(rows, before), length)
    expected = [
        (index, row[start : start + length])
        for index, row in enumerate(rows)
        for start in range(0, max(len(row), 1), length)
    ]
    assert list(zip(owners.tolist(), (piece.tolist() for piece in pieces), strict=True)) == expected
