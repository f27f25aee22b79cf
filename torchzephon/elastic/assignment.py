"""Which data-parallel rank this process is, and which lanes it owns."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

logger = logging.getLogger(__name__)

DataParallel: TypeAlias = "DeviceMesh | dist.ProcessGroup | tuple[int, int] | None"


@dataclass(frozen=True)
class Assignment:
    """One data-parallel rank of several, and its share of the lanes.

    Attributes:
        rank: this data-parallel rank.
        size: number of data-parallel ranks.
        num_lanes: number of lanes of the whole run.
        group: the process group of the data-parallel ranks; None for WORLD, or where there is no process group.
        connected: whether a process group stands behind the ranks, so that they can agree on something.
        label: what the ranks were taken from, for messages.
        part: of this rank's places in a round, every ``parts``-th from ``part`` on.
        parts: see ``part``.
    """

    rank: int
    size: int
    num_lanes: int
    group: dist.ProcessGroup | None
    connected: bool
    label: str
    part: int = 0
    parts: int = 1

    @property
    def owned(self) -> range:
        """The lanes: ``[rank * V // W, (rank + 1) * V // W)``, or every ``parts``-th of them."""
        lanes = range(self.rank * self.num_lanes // self.size, (self.rank + 1) * self.num_lanes // self.size)
        return lanes[self.part :: self.parts]

    @property
    def most_owned(self) -> int:
        """The largest number of lanes that a rank (its part) owns: ``ceil(V / W)``."""
        return len(range(-(-self.num_lanes // self.size))[self.part :: self.parts])

    def share(self, part: int, parts: int) -> Assignment:
        """Every ``parts``-th place of this rank's rounds, with no way to talk to other ranks: for a worker."""
        return replace(self, group=None, connected=False, part=part, parts=parts)

    @property
    def is_even(self) -> bool:
        """Whether all ranks own the same number of lanes."""
        return self.num_lanes % self.size == 0


def assign_lanes(num_lanes: int, dp: DataParallel) -> Assignment:
    """Finds out this process's data-parallel rank and gives it its lanes.

    Args:
        num_lanes: number of lanes of the whole run, V.
        dp: a one-dimensional ``DeviceMesh`` (such as ``mesh["dp"]`` or a flattened HSDP mesh), a ``ProcessGroup``, or
            ``(rank, size)``. None: WORLD where torch.distributed is initialized, else torchrun's environment
            variables, else one rank alone.

    Raises:
        TypeError: for any other ``dp``.
        ValueError: for a mesh of several dimensions, a rank out of range, or more ranks than lanes.
    """
    rank, size, group, connected, label = _resolve(dp)
    if not 0 <= rank < size:
        raise ValueError(f"dp: rank {rank} of {size} does not exist; ranks count from 0 to {size - 1}")
    if size > num_lanes:
        raise ValueError(
            f"{size} data-parallel ranks ({label}) cannot share num_lanes={num_lanes} lanes: every rank needs a lane. "
            f"Start at most {num_lanes} ranks, or begin a new run with more lanes "
            "(choose as many as the most ranks that you may ever have)"
        )
    assignment = Assignment(rank, size, num_lanes, group, connected, label)
    if dp is None and size > 1:
        owned = assignment.owned
        logger.info(
            "rank %d of %d of %s owns lanes %d-%d of %d; "
            "with tensor, pipeline or context parallelism pass dp=mesh['dp']",
            rank, size, label, owned[0], owned[-1], num_lanes,
        )  # fmt: skip
    return assignment


def _resolve(dp: Any) -> tuple[int, int, dist.ProcessGroup | None, bool, str]:
    if dp is None:
        if dist.is_available() and dist.is_initialized():
            return dist.get_rank(), dist.get_world_size(), None, True, "WORLD"
        if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
            return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), None, False, "RANK and WORLD_SIZE"
        return 0, 1, None, False, "one process"
    if isinstance(dp, DeviceMesh):
        if dp.ndim != 1:
            names = dp.mesh_dim_names or tuple(f"dim {i}" for i in range(dp.ndim))
            raise ValueError(
                f"dp is a mesh of {dp.ndim} dimensions {names}; pass its data-parallel dimension (mesh['dp']), or the "
                "data-parallel dimensions flattened into one (mesh['replicate', 'shard']._flatten('dp'))"
            )
        if dp.get_coordinate() is None:
            raise ValueError(
                "dp is a mesh that this rank is not part of; pass the mesh of this rank's data-parallel peers"
            )
        return dp.get_local_rank(), dp.size(), dp.get_group(), True, f"mesh {dp.mesh_dim_names or ''}"
    if isinstance(dp, tuple) and len(dp) == 2 and all(isinstance(part, int) for part in dp):
        return dp[0], dp[1], None, False, "dp=(rank, size)"
    if isinstance(dp, dist.ProcessGroup):
        rank = dist.get_rank(dp)
        if rank < 0:
            raise ValueError("dp is a process group that this rank is not part of")
        return rank, dist.get_world_size(dp), dp, True, "process group"
    raise TypeError(f"dp must be a DeviceMesh, a ProcessGroup, (rank, size) or None, got {type(dp).__name__}")
