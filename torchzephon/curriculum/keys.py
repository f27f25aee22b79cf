"""Keys: where all randomness comes from. Nothing is drawn, everything is derived, alike on every platform."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_27, _30, _31 = np.uint64(27), np.uint64(30), np.uint64(31)


def derive(seed: int, *labels: int | str) -> int:
    """A 64-bit key for what ``labels`` name, from any integer ``seed``; slow (a microsecond) and collision free."""
    digest = blake2b(digest_size=8)
    for part in (seed, *labels):
        text = f"{type(part).__name__}:{part}".encode()
        digest.update(len(text).to_bytes(8, "little") + text)
    return int.from_bytes(digest.digest(), "little")


def mix(key: NDArray[np.uint64], label: NDArray[np.int64]) -> NDArray[np.uint64]:
    """One more key for each element, from a key and a number: the output function of splitmix64.

    Args:
        key: uint64 ``[n]`` or ``[n, 1]``.
        label: int64 ``[n]``, or what broadcasts with ``key``; another label gives an unrelated key.
    """
    mixed: NDArray[np.uint64] = label.astype(np.uint64) * _GOLDEN
    mixed = mixed + key
    mixed ^= mixed >> _30
    mixed *= _MIX_1
    mixed ^= mixed >> _27
    mixed *= _MIX_2
    mixed ^= mixed >> _31
    return mixed


def shuffled(size: int, key: int) -> NDArray[np.int64]:
    """All of ``range(size)`` in the order that belongs to ``key``: sorted by hash, so all orders are equally likely.

    Returns:
        int64 ``[size]``, read-only.
    """
    hashes = mix(np.full(size, key, np.uint64), np.arange(1, size + 1, dtype=np.int64))
    order = np.argsort(hashes, kind="stable").astype(np.int64)
    order.flags.writeable = False
    return order
