"""The packing algorithms by name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol

from torchzephon.packing.base import Options, Packing
from torchzephon.packing.best_fit import best_fit
from torchzephon.packing.first_fit import first_fit
from torchzephon.packing.windows import Windows
from torchzephon.packing.wrap import Wrap


class Algorithm(Protocol):
    """Makes a packing: a class such as :class:`Wrap`, or :class:`Windows` with a function."""

    def __call__(self, capacity: int, options: Options, state: Mapping[str, Any] | None = None) -> Packing:
        """A packing into sequences of ``capacity`` tokens; raises ValueError for options that mean nothing to it."""
        ...


ALGORITHMS: Mapping[str, Algorithm] = {
    "wrap": Wrap,
    "best_fit": partial(Windows, best_fit),
    "first_fit": partial(Windows, first_fit),
}
