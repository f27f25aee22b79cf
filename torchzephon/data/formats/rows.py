"""From sample dicts to columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torchzephon.data.block import MISSING, Column


def to_columns(samples: Sequence[Mapping[str, Any]], columns: Mapping[str, str] | None) -> dict[str, Column]:
    """Turns samples into list columns.

    Args:
        samples: sample dicts; a field that only some have is ``MISSING`` in the others.
        columns: new name -> stored name, to select and rename; None for all fields.
    """
    if columns is None:
        names = samples[0].keys() if samples else {}.keys()
        if all(sample.keys() == names for sample in samples):  # the usual case
            return {name: [sample[name] for sample in samples] for name in names}
        columns = {name: name for sample in samples for name in sample}
    return {name: [sample.get(stored, MISSING) for sample in samples] for name, stored in columns.items()}
