"""How batches travel from a worker process: as few and as small tensors as possible.

What costs between processes is the number of tensors and their bytes, so tensors of one shape are stacked, and int64
values that fit are sent as int32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

_INT32 = torch.iinfo(torch.int32)


@dataclass
class Stack:
    """Several tensors of equal shape in one: ``tensor[name, batch]``.

    Attributes:
        names: keys of the batches, in order of the first dimension.
        tensor: ``[len(names), batches, ...]``.
        widen: whether the values are int64, sent as int32.
    """

    names: list[str]
    tensor: torch.Tensor
    widen: bool


@dataclass
class Packed:
    """Batches on their way: stacks where they are dicts of tensors of equal shapes, else as they are."""

    count: int
    stacks: list[Stack]
    plain: list[Any]


def pack(batches: Sequence[Any]) -> Packed:
    """Prepares batches for the trip."""
    groups = _group_names(batches)
    if groups is None:
        return Packed(len(batches), [], list(batches))
    stacks = []
    for names in groups:
        tensors = [batch[name] for name in names for batch in batches]
        widen = tensors[0].dtype == torch.int64 and all(map(_fits, tensors))
        out = torch.empty((len(tensors), *tensors[0].shape), dtype=torch.int32 if widen else tensors[0].dtype)
        for place, tensor in enumerate(tensors):
            out[place] = tensor
        stacks.append(Stack(names, out.view(len(names), len(batches), *tensors[0].shape), widen))
    return Packed(len(batches), stacks, [])


def unpack(packed: Packed, *, pin_memory: bool = False) -> list[Any]:
    """The batches as they were.

    Args:
        packed: from :func:`pack`.
        pin_memory: put the tensors into page-locked memory.
    """
    if not packed.stacks:
        return packed.plain
    batches: list[dict[str, torch.Tensor]] = [{} for _ in range(packed.count)]
    for stack in packed.stacks:
        dtype = torch.int64 if stack.widen else stack.tensor.dtype
        # A copy in any case: memory shared with a worker is a scarce resource (file descriptors, /dev/shm).
        values = torch.empty(stack.tensor.shape, dtype=dtype, pin_memory=pin_memory)
        values.copy_(stack.tensor)
        for name, rows in zip(stack.names, values.unbind(0), strict=True):
            for batch, row in zip(batches, rows.unbind(0), strict=True):
                batch[name] = row
    return batches


def _group_names(batches: Sequence[Any]) -> list[list[str]] | None:
    """The keys of the batches, grouped by shape and dtype; None where batches are not dicts of alike CPU tensors."""
    if not batches or not all(isinstance(batch, dict) and batch and _all_plain(batch) for batch in batches):
        return None
    shapes = {name: (value.shape, value.dtype) for name, value in batches[0].items()}
    for batch in batches[1:]:
        if {name: (value.shape, value.dtype) for name, value in batch.items()} != shapes:
            return None
    groups: dict[Any, list[str]] = {}
    for name, kind in shapes.items():
        groups.setdefault(kind, []).append(name)
    return list(groups.values())


def _all_plain(batch: dict[str, Any]) -> bool:
    return all(type(value) is torch.Tensor and value.device.type == "cpu" for value in batch.values())


def _fits(tensor: torch.Tensor) -> bool:
    if not tensor.numel():
        return True
    least, most = torch.aminmax(tensor)
    return bool(least >= _INT32.min) and bool(most <= _INT32.max)
