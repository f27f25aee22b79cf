"""Which formats there are. A new one is one file, and one line here."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterable
from typing import cast

from torchzephon.data.formats.base import Format
from torchzephon.errors import DataError

_CLASSES = (
    "torchzephon.data.formats.jsonl:JsonlFormat",
    "torchzephon.data.formats.parquet:ParquetFormat",
)


@functools.lru_cache
def formats() -> dict[str, Format]:
    """All formats by name."""
    found = {}
    for path in _CLASSES:
        module, _, name = path.partition(":")
        made = cast("Format", getattr(importlib.import_module(module), name)())
        found[made.name] = made
    return found


def format_of_name(name: str) -> Format:
    """The format that ``Dataset(format=name)`` means.

    Raises:
        ValueError: for a name that is not known; lists those that are.
    """
    if name not in formats():
        raise ValueError(f"format must be one of {', '.join(map(repr, formats()))}, got {name!r}")
    return formats()[name]


def format_of_files(names: Iterable[str]) -> Format:
    """The one format that all file names belong to.

    Raises:
        DataError: where a suffix is unknown, or they belong to several.
    """
    examples: dict[str, str] = {}  # the first file of each format
    for name in names:
        format_name = next((each.name for each in formats().values() if name.lower().endswith(each.suffixes)), None)
        if format_name is None:
            known = "; ".join(f"{each.name}: {' '.join(each.suffixes)}" for each in formats().values())
            raise DataError(
                f"the format of {name!r} cannot be told from its name. Known are {known}. Leave such files out with a "
                f"glob such as 'directory/**/*.jsonl', or say format=... when all files have one format"
            )
        examples.setdefault(format_name, name)
    if len(examples) > 1:
        listed = ", ".join(f"{format_name} ({name})" for format_name, name in examples.items())
        raise DataError(f"a dataset has one format, these are several: {listed}. Make a dataset of each, with a glob")
    return formats()[next(iter(examples))]
