"""A keyed permutation of ``range(size)`` that can be asked for any position, alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchzephon.curriculum.keys import mix

_ROUNDS = 8
_TINY = 32  # up to here eight rounds show a bias, and ranking hashes is cheap
_LOW = np.uint64(_TINY - 1)
_32 = np.uint64(32)


def _odd_constants(count: int) -> list[np.uint64]:
    numbers = mix(np.zeros(count, np.uint64), np.arange(1, count + 1, dtype=np.int64)) | np.uint64(1)
    return list(numbers)


_CONSTANTS = _odd_constants(2 * _ROUNDS)


def permute(index: NDArray[np.int64], size: NDArray[np.int64], key: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Where the permutation of ``range(size)`` that belongs to ``key`` sends ``index``: O(1) time and memory each.

    Each element has a size and a key of its own, so one call serves positions of many epochs, shards and datasets.
    Large ranges go through a Feistel network on an a x b grid just larger than ``size``, and walk its cycle until
    they are back in the range (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002); for ranges of up
    to 32 numbers all permutations are equally likely.

    Args:
        index: int64 ``[n]``, ``0 <= index < size``.
        size: int64 ``[n]``, from 1 to ``2**60``.
        key: uint64 ``[n]``, well mixed (see :mod:`~torchzephon.curriculum.keys`).

    Returns:
        int64 ``[n]``, ``0 <= result < size``.
    """
    tiny = size <= _TINY
    if not tiny.any():
        return _feistel(index, size, key)
    result = np.empty_like(index)
    result[tiny] = _rank(index[tiny], size[tiny], key[tiny])
    large = ~tiny
    result[large] = _feistel(index[large], size[large], key[large])
    return result


def _rank(index: NDArray[np.int64], size: NDArray[np.int64], key: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The rank of the index's hash among the hashes of the range."""
    numbers = np.arange(int(size.max()), dtype=np.int64)
    hashes = mix(key[:, None], numbers + 1)
    # The low bits become the number itself: no two hashes of a row are equal.
    hashes = (hashes & ~_LOW) | numbers.astype(np.uint64)
    own = np.take_along_axis(hashes, index[:, None], 1)
    smaller = (hashes < own) & (numbers < size[:, None])
    rank: NDArray[np.int64] = smaller.sum(axis=1, dtype=np.int64)
    return rank


def _feistel(index: NDArray[np.int64], size: NDArray[np.int64], key: NDArray[np.uint64]) -> NDArray[np.int64]:
    """A grid a little larger than the range, permuted; what leaves the range is permuted again until it is back."""
    limit = size.astype(np.uint64)
    # sqrt is correctly rounded everywhere; a grid that is one row too large would do no harm.
    height = np.sqrt((size - 1).astype(np.float64)).astype(np.uint64) + np.uint64(1)
    width = (limit + height - np.uint64(1)) // height
    result: NDArray[np.uint64] = _permute_grid(index.astype(np.uint64), height, width, key)
    outside = np.flatnonzero(result >= limit)
    while len(outside):
        again = _permute_grid(result[outside], height[outside], width[outside], key[outside])
        result[outside] = again
        outside = outside[again >= limit[outside]]
    return result.astype(np.int64)


def _permute_grid(number: NDArray[Any], height: NDArray[Any], width: NDArray[Any], key: NDArray[Any]) -> NDArray[Any]:
    """``x * width + y`` -> the same, permuted: x moves by a hash of y, y by a hash of x, and so on. All uint64."""
    x: NDArray[Any] = number // width
    y = number - x * width
    moved, by, modulus = x, y, height
    scratch = np.empty_like(x)
    for turn in range(_ROUNDS):
        hashed = by * _CONSTANTS[2 * turn]
        hashed ^= key
        np.right_shift(hashed, _32, out=scratch)
        hashed ^= scratch
        hashed *= _CONSTANTS[2 * turn + 1]
        hashed >>= _32
        moved += hashed
        moved %= modulus
        moved, by, modulus = by, moved, width if modulus is height else height
    x *= width
    x += y
    return x
