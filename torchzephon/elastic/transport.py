"""How batches travel from a worker process: through memory that both processes map, used again and again.

What costs between processes is the number of tensors, their bytes, and most of all memory that is touched for the
first time. So tensors of one shape are stacked, int64 values that fit are sent as int32, and a worker writes into few
pieces of shared memory in turn, each as soon as the parent has copied what was in it. A batcher that asks the sender
for its memory makes its batches there, and nothing is copied in the worker.
"""

from __future__ import annotations

import functools
import math
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

_INT32 = torch.iinfo(torch.int32)
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by size, bytes
_ALIGNMENT = 64


@dataclass
class Stack:
    """Several tensors of equal shape in one: ``[batches, len(names), ...]``.

    Attributes:
        names: keys of the batches, in order of the second dimension.
        shape: of the stack.
        dtype: of the tensors.
        sent: the dtype that they are sent as.
        offset: where the stack begins in the shared memory, bytes.
    """

    names: list[str]
    shape: tuple[int, ...]
    dtype: torch.dtype
    sent: torch.dtype
    offset: int

    @property
    def end(self) -> int:
        """Where it ends, bytes."""
        return self.offset + math.prod(self.shape) * self.sent.itemsize

    def view(self, memory: NDArray[np.uint8]) -> NDArray[Any]:
        """The stack in the shared memory."""
        return memory[self.offset : self.end].view(_numpy_dtype(self.sent)).reshape(self.shape)


@dataclass
class Packed:
    """Batches on their way.

    Attributes:
        slot: which piece of the worker's shared memory has their stacked tensors; None: there are none.
        memory: that piece, uint8 ``[n]``, where the parent does not know it yet.
        stacks: the tensors that all batches have under the same key, of the same shape and dtype.
        plain: the batches as they are, but for None in the places of those tensors.
    """

    slot: int | None
    memory: torch.Tensor | None
    stacks: list[Stack]
    plain: list[Any]


class Sender:
    """A worker's end.

    Args:
        received: int64 ``[1]``, shared: how many items the parent has unpacked.
    """

    def __init__(self, received: torch.Tensor) -> None:
        self._received = received
        self._memory: list[torch.Tensor] = []  # of each slot
        self._free: list[int] = []  # slots
        self._sent = 0
        self._in_use: deque[tuple[int, int]] = deque()  # number of the item, its slot
        self._known: set[int] = set()  # slots that the parent has
        self._widened: Collection[str] = ()
        self._open: int | None = None  # the slot that the next item's batches are made in
        self._made = 0  # bytes of them
        self._most = 0  # bytes of those of any item before

    def begin(self, widened: Collection[str] = ()) -> None:
        """Begins to count anew: the parent has forgotten all that was sent.

        Args:
            widened: keys of int32 tensors that the parent is to widen to int64.
        """
        self._widened = widened
        self._sent = 0
        self._free = list(range(len(self._memory)))
        self._in_use.clear()
        self._known.clear()
        self._open, self._made = None, 0

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """An array for a batch of the next item, its values undefined: in the shared memory, if there is room."""
        start = self._made
        self._made += math.prod(shape) * np.dtype(dtype).itemsize
        if self._open is None and not start and self._made <= self._most:  # as large as all of the items before
            self._open = self._free_slot(self._most)
        if self._open is None or self._made > len(self._memory[self._open]):
            return np.empty(shape, dtype)
        return self._memory[self._open].numpy()[start : self._made].view(dtype).reshape(shape)

    def pack(self, batches: Sequence[Any]) -> Packed:
        """Prepares batches for the trip."""
        slot, stacks = self._open, self._in_place(batches)
        if not stacks and (groups := _group_names(batches, self._widened)):
            slot, stacks = self._copy(batches, groups)
        names = {name for stack in stacks for name in stack.names}
        self._open, self._most, self._made = None, max(self._most, self._made), 0
        self._sent += 1
        plain = [self._rest(batch, names) for batch in batches]
        if not stacks or slot is None:
            return Packed(None, None, [], plain)
        known = slot in self._known
        self._known.add(slot)
        return Packed(slot, None if known else self._memory[slot], stacks, plain)

    def _in_place(self, batches: Sequence[Any]) -> list[Stack]:
        """The stack that the batches are where they lie, if they lie one after another in the open slot."""
        if self._open is None or not all(type(batch) is dict for batch in batches):
            return []
        names = [name for name in batches[0] if name in self._widened] if batches else []
        tensors = [batch.get(name) for batch in batches for name in names]
        if not tensors or not all(_is_plain(tensor) and tensor.dtype == torch.int32 for tensor in tensors):
            return []
        shape, size, begin = tensors[0].shape, tensors[0].nbytes, self._memory[self._open].data_ptr()
        for number, tensor in enumerate(tensors):
            if tensor.shape != shape or tensor.data_ptr() != begin + number * size:
                return []
        return [Stack(names, (len(batches), len(names), *shape), torch.int64, torch.int32, 0)]

    def _copy(self, batches: Sequence[dict[Any, Any]], groups: Sequence[list[str]]) -> tuple[int, list[Stack]]:
        """Copies tensors into a slot: which, and where they lie in it."""
        stacks: list[Stack] = []
        for names in groups:
            offset = -(-stacks[-1].end // _ALIGNMENT) * _ALIGNMENT if stacks else 0
            stacks.append(_plan(names, batches, offset, is_widened=names[0] in self._widened))
        slot = self._free_slot(stacks[-1].end)
        memory = self._memory[slot].numpy()
        for stack in stacks:
            for places, batch in zip(stack.view(memory), batches, strict=True):
                for row, name in enumerate(stack.names):
                    places[row] = _array(batch[name])
        return slot, stacks

    def _rest(self, batch: Any, stacked: Collection[str]) -> Any:
        """A batch without the tensors that are stacked, the others as wide as they should be."""
        if type(batch) is not dict:
            return batch
        wide = {name: batch[name].long() for name in self._widened if name in batch and name not in stacked}
        return {name: None if name in stacked else wide.get(name, value) for name, value in batch.items()}

    def _free_slot(self, size: int) -> int:
        """A slot that the parent has no use for any more, and now has at least ``size`` bytes."""
        # What the parent has received last it may still be reading, if the processors reorder what they write.
        while self._in_use and self._in_use[0][0] < int(self._received):
            self._free.append(self._in_use.popleft()[1])
        if not self._free:
            self._free.append(len(self._memory))
            self._memory.append(torch.empty(0, dtype=torch.uint8))
        slot = self._free.pop()
        self._in_use.append((self._sent + 1, slot))
        if len(self._memory[slot]) < size:
            self._memory[slot] = torch.empty(size, dtype=torch.uint8).share_memory_()
            self._known.discard(slot)
        return slot


class Receiver:
    """The parent's end, of one worker.

    Args:
        received: see :class:`Sender`.
    """

    def __init__(self, received: torch.Tensor) -> None:
        self._received = received
        self._memory: dict[int, NDArray[np.uint8]] = {}

    def unpack(self, packed: Packed) -> list[Any]:
        """The batches as they were, in memory of this process."""
        batches = [_detach(batch) for batch in packed.plain]
        if packed.slot is not None:
            if packed.memory is not None:
                self._memory[packed.slot] = packed.memory.numpy()
            for stack in packed.stacks:
                self._copy(stack, self._memory[packed.slot], batches)
        self._received += 1
        return batches

    def _copy(self, stack: Stack, memory: NDArray[np.uint8], batches: Sequence[dict[str, Any]]) -> None:
        for sent, batch in zip(stack.view(memory), batches, strict=True):
            # numpy's, since torch would use a thread a core, which take them from the workers, spinning in between
            tensors = torch.from_numpy(sent.astype(_numpy_dtype(stack.dtype))).view(stack.dtype)
            batch.update(zip(stack.names, tensors.unbind(0), strict=True))


@functools.cache
def _numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """The same type in numpy; where it has none, as for bfloat16, an integer of the same size."""
    return _array(torch.empty(0, dtype=dtype)).dtype


def _array(tensor: torch.Tensor) -> NDArray[Any]:
    """The tensor's memory, of :func:`_numpy_dtype`."""
    try:
        return tensor.numpy()
    except TypeError:
        return tensor.view(_INTEGERS[tensor.itemsize]).numpy()


def _group_names(batches: Sequence[Any], widened: Collection[str]) -> list[list[str]]:
    """The keys under which all batches have alike tensors, not empty, by shape, dtype and whether they are widened."""
    if not all(type(batch) is dict for batch in batches):
        return []
    groups: dict[Any, list[str]] = {}
    for name, first in batches[0].items() if batches else ():
        values = [batch.get(name) for batch in batches]
        if all(
            _is_plain(value) and value.numel() and (value.shape, value.dtype) == (first.shape, first.dtype)
            for value in values
        ):
            groups.setdefault((first.shape, first.dtype, name in widened), []).append(name)
    return list(groups.values())


def _plan(names: list[str], batches: Sequence[Any], offset: int, *, is_widened: bool) -> Stack:
    first = batches[0][names[0]]
    shape = (len(batches), len(names), *first.shape)
    if first.dtype == torch.int32 and is_widened:
        return Stack(names, shape, torch.int64, torch.int32, offset)
    fits = first.dtype == torch.int64 and all(_fits(batch[name]) for name in names for batch in batches)
    return Stack(names, shape, first.dtype, torch.int32 if fits else first.dtype, offset)


def _is_plain(value: Any) -> bool:
    return (
        type(value) is torch.Tensor
        and value.layout == torch.strided
        and value.device.type == "cpu"
        and value.is_contiguous()
        and not value.requires_grad
        and not value.is_conj()
        and not value.is_neg()
    )


def _fits(tensor: torch.Tensor) -> bool:
    least, most = torch.aminmax(tensor)
    return bool(least >= _INT32.min) and bool(most <= _INT32.max)


def _detach(value: Any) -> Any:
    """A copy outside of the memory shared with a worker, which is scarce (file descriptors, /dev/shm)."""
    if type(value) is dict:
        return {name: _detach(part) for name, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_detach(part) for part in value)
    return value.clone() if _is_plain(value) else value
