"""From sample dicts to columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torchzephon.data.block import MISSING, Column


def to_columns(samples: Sequence[Mapping[str, Any]], columns: Mapping[str, str] | None) -> dict[str, Column]:
    """Turns samples into list columns.

    Args:
        samples: sample dicts; a field that only some have is ``MISSING`` in the others.
        columns: new name -> stored name, to select and rename, or a path into objects such as ``"meta.lang"``; None for
            all fields.
    """
    if columns is None:
        names = samples[0].keys() if samples else {}.keys()
        if all(sample.keys() == names for sample in samples):  # the usual case
            return {name: [sample[name] for sample in samples] for name in names}
        columns = {name: name for sample in samples for name in sample}
    return {name: _values(samples, stored) for name, stored in columns.items()}


def _values(samples: Sequence[Mapping[str, Any]], stored: str) -> list[Any]:
    values = [sample.get(stored, MISSING) for sample in samples]
    if "." in stored and MISSING in values:
        return [
            _follow(sample, stored) if value is MISSING else value
            for sample, value in zip(samples, values, strict=True)
        ]
    return values


def _follow(sample: Any, path: str) -> Any:
    """What lies at a path of names joined by dots."""
    for name in path.split("."):
        if not isinstance(sample, Mapping) or name not in sample:
            return MISSING
        sample = sample[name]
    return sample
