import numpy as np
import pytest

from torchzephon.packing.pieces import cut, usable


def pieces(lengths, capacity, oversize):
    return list(zip(*(part.tolist() for part in cut(np.asarray(lengths, np.int64), capacity, oversize)), strict=True))


def test_split_makes_full_pieces_and_a_rest():
    assert pieces([3, 0, 4, 10, 1], 4, "split") == [
        (0, 0, 3),
        (2, 3, 7),
        (3, 7, 11),
        (3, 11, 15),
        (3, 15, 17),
        (4, 17, 18),
    ]


def test_truncate_keeps_the_beginning():
    assert pieces([3, 0, 9, 4], 4, "truncate") == [(0, 0, 3), (2, 3, 7), (3, 12, 16)]


def test_drop_leaves_out():
    assert pieces([3, 0, 9, 4], 4, "drop") == [(0, 0, 3), (3, 12, 16)]


@pytest.mark.parametrize("oversize", ["split", "truncate", "drop", "error"])
def test_usable_tokens_are_those_of_the_pieces(oversize):
    lengths = np.asarray([5, 0, 1, 12, 4])
    owners, starts, stops = cut(lengths, 4, oversize)
    assert np.bincount(owners, weights=stops - starts, minlength=5).tolist() == usable(lengths, 4, oversize).tolist()


def test_nothing():
    assert pieces([], 4, "split") == []
