"""Sizes in bytes, as people write them."""

from __future__ import annotations

import re

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}


def parse_bytes(size: int | str, name: str = "size") -> int:
    """Reads ``1_000_000``, ``"500MB"``, ``"1.5 GB"`` or ``"2GiB"`` as a number of bytes.

    Args:
        size: the size; as in storage, K is 1000 and Ki is 1024.
        name: the argument's name, for the messages.

    Raises:
        TypeError: for something that is neither an int nor a str.
        ValueError: for a text that is no size, and for a negative number.
    """
    if isinstance(size, bool) or not isinstance(size, (int, str)):
        raise TypeError(f'{name} must be a number of bytes or a text such as "2GB", got {size!r}')
    if isinstance(size, int):
        if size < 0:
            raise ValueError(f"{name} must not be negative, got {size}")
        return size
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?\s*", size.upper())
    if match is None or match[2] not in _UNITS:
        raise ValueError(f'{name} must be a number of bytes or a text such as "500MB", "2GB" or "2GiB", got {size!r}')
    return int(float(match[1]) * _UNITS[match[2]])


def format_bytes(size: int) -> str:
    """``1_500_000_000`` as ``"1.5 GB"``."""
    value = float(size)
    for unit in ("bytes", "kB", "MB", "GB"):
        if value < 1000:
            return f"{size} bytes" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"
