"""WorkSource: the lane-aware leaf of a graph."""

from __future__ import annotations

from collections.abc import Sequence

from torchdata.nodes import BaseNode

from torchzephon.curriculum.work import Work
from torchzephon.data.dataset import Dataset


class WorkSource(BaseNode[Work]):
    """Base class for curricula: a leaf that yields the :class:`Work` of one lane.

    Placeholder that the curriculum's author completes: see ``bind_lane``, ``cycle``, ``datasets``, ``is_finite``.
    """

    datasets: Sequence[Dataset]
