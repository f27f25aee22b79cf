"""Checks of arguments, where they enter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def check_int(
    argument: str, value: Any, *, at_least: int | None = None, at_most: int | None = None, where: str = ""
) -> None:
    """Refuses what is not an int, too small or too large.

    Args:
        argument: its name, for the message.
        value: what was given.
        at_least: the smallest value that is allowed, None for any.
        at_most: the largest, None for any.
        where: more for the message, such as ``" for dataset 'web'"``.

    Raises:
        TypeError: it is not an int (a bool is none).
        ValueError: it is too small or too large.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{argument} must be an int, got {value!r}{where}")
    if at_least is not None and value < at_least:
        raise ValueError(f"{argument} must be at least {at_least}, got {value}{where}")
    if at_most is not None and value > at_most:
        raise ValueError(f"{argument} must be at most {at_most}, got {value}{where}")


def check_choice(argument: str, value: Any, choices: Sequence[str]) -> None:
    """Refuses what is not one of a few words.

    Args:
        argument: its name, for the message.
        value: what was given.
        choices: what is allowed.

    Raises:
        ValueError: it is none of them.
    """
    if value not in choices:
        raise ValueError(f"{argument} must be one of {', '.join(map(repr, choices))}, got {value!r}")
