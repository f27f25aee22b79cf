"""How batches travel from a worker process: as few and as small tensors as possible.

What costs between processes is the number of tensors and their bytes, so tensors of one shape are stacked, and int64
values that fit are sent as int32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
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
    """Batches on their way.

    Attributes:
        stacks: the tensors that all batches have under the same key, of the same shape and dtype.
        plain: the batches as they are, but for None in the places of those tensors.
    """

    stacks: list[Stack]
    plain: list[Any]


def pack(batches: Sequence[Any]) -> Packed:
    """Prepares batches for the trip."""
    groups = _group_names(batches)
    stacked = {name for names in groups for name in names}
    plain = list(batches)
    if stacked:
        plain = [{name: None if name in stacked else value for name, value in batch.items()} for batch in batches]
    return Packed([_stack(names, batches) for names in groups], plain)


def unpack(packed: Packed, *, pin_memory: bool = False) -> list[Any]:
    """The batches as they were.

    Args:
        packed: from :func:`pack`.
        pin_memory: put the tensors into page-locked memory.
    """
    batches = [_detach(batch, pin_memory) for batch in packed.plain]
    for stack in packed.stacks:
        dtype = torch.int64 if stack.widen else stack.tensor.dtype
        values = torch.empty(stack.tensor.shape, dtype=dtype, pin_memory=pin_memory)
        if stack.widen:  # torch would use a thread a core, which take them from the workers, spinning between copies
            np.copyto(values.numpy(), stack.tensor.numpy())
        else:
            values.copy_(stack.tensor)
        for name, rows in zip(stack.names, values.unbind(0), strict=True):
            for batch, row in zip(batches, rows.unbind(0), strict=True):
                batch[name] = row
    return batches


def _group_names(batches: Sequence[Any]) -> list[list[str]]:
    """The keys under which all batches have alike tensors, grouped by shape and dtype."""
    if not all(type(batch) is dict for batch in batches):
        return []
    groups: dict[Any, list[str]] = {}
    for name, first in batches[0].items() if batches else ():
        values = [batch.get(name) for batch in batches]
        if all(_is_plain(value) and (value.shape, value.dtype) == (first.shape, first.dtype) for value in values):
            groups.setdefault((first.shape, first.dtype), []).append(name)
    return list(groups.values())


def _stack(names: list[str], batches: Sequence[Any]) -> Stack:
    tensors = [batch[name] for name in names for batch in batches]
    first = tensors[0]
    widen = first.dtype == torch.int64 and all(map(_fits, tensors))
    out = torch.empty((len(tensors), *first.shape), dtype=torch.int32 if widen else first.dtype)
    for place, tensor in enumerate(tensors):
        out[place] = tensor
    return Stack(names, out.view(len(names), len(batches), *first.shape), widen)


def _is_plain(value: Any) -> bool:
    return (
        type(value) is torch.Tensor
        and value.layout == torch.strided
        and value.device.type == "cpu"
        and value.is_contiguous()
        and not value.requires_grad
    )


def _fits(tensor: torch.Tensor) -> bool:
    if not tensor.numel():
        return True
    least, most = torch.aminmax(tensor)
    return bool(least >= _INT32.min) and bool(most <= _INT32.max)


def _detach(value: Any, pin_memory: bool) -> Any:
    """A copy outside of the memory shared with a worker, which is scarce (file descriptors, /dev/shm)."""
    if type(value) is dict:
        return {name: _detach(part, pin_memory) for name, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_detach(part, pin_memory) for part in value)
    if _is_plain(value):
        return value.pin_memory() if pin_memory else value.clone()
    return value
