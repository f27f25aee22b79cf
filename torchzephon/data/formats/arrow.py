"""Decoded Arrow rows, and how blocks' columns are picked from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from torchzephon.data.block import Column
from torchzephon.data.ragged import Ragged

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Lists:
    """A column of lists of numbers, ready to be used without Arrow.

    Attributes:
        rows: the lists; a null list is a row of any length.
        valid: bool ``[n]``, False for null lists; None where there are none.
    """

    rows: Ragged
    valid: NDArray[np.bool_] | None


class UnreadableError(ValueError):
    """A value that Python cannot hold.

    Attributes:
        row: index into the rows that were asked for.
    """

    def __init__(self, reason: str, row: int) -> None:
        super().__init__(reason)
        self.row = row


Decoded: TypeAlias = "Lists | pa.Array"


class Chunk:
    """Some decoded rows.

    Args:
        batch: the rows.
        columns: new name -> path to the column: its name, then names of struct fields.

    Attributes:
        columns: new name -> column.
        row_bytes: int64 ``[n]``, about how many bytes each row takes.
        nbytes: bytes that the chunk holds in memory.
    """

    def __init__(self, batch: pa.RecordBatch, columns: Mapping[str, tuple[str, ...]]) -> None:
        import pyarrow as pa

        arrays = {name: _plain(_follow(batch, path)) for name, path in columns.items()}
        compact, nbytes = _compact(pa.RecordBatch.from_arrays(list(arrays.values()), list(arrays)))
        self.columns: dict[str, Decoded] = {}
        self.row_bytes = np.zeros(batch.num_rows, np.int64)
        self.nbytes = nbytes + self.row_bytes.nbytes
        for name, array in zip(columns, compact.columns, strict=True):
            column = self.columns[name] = _decode(array)
            self.row_bytes += _sizes(array, column)
            self.nbytes += column.rows.offsets.nbytes if isinstance(column, Lists) else 0

    def __len__(self) -> int:
        return len(self.row_bytes)


def pick(parts: Sequence[Decoded], which: NDArray[np.intp], rows: NDArray[np.int64]) -> Column:
    """Row ``rows[i]`` of ``parts[which[i]]``, for every ``i``.

    Args:
        parts: one column, in parts; at least one.
        which: intp ``[n]``.
        rows: int64 ``[n]``.

    Returns:
        A Ragged copy for lists of numbers, unless one of the rows is null or holds a null; else a list of Python
        objects, with None for null, an array for a list of numbers, and a dict for a struct.

    Raises:
        UnreadableError: for a value that Python cannot hold, such as text that is not UTF-8.
    """
    used = np.unique(which)
    lists = [part for part in parts if isinstance(part, Lists)]
    if len(lists) == len(parts) and all(_all_valid(lists[part], rows[which == part]) for part in used):
        return Ragged.gather([part.rows for part in lists], which, rows)
    if len(used) == 1:
        return _objects(parts[used[0]], rows)
    column = np.empty(len(rows), object)
    for part in used:
        at = np.flatnonzero(which == part)
        try:
            objects = _objects(parts[part], rows[at])
        except UnreadableError as error:
            raise UnreadableError(str(error), int(at[error.row])) from error
        for index, value in zip(at.tolist(), objects, strict=True):
            column[index] = value
    return column.tolist()  # type: ignore[no-any-return]


def _objects(part: Decoded, rows: NDArray[np.int64]) -> list[Any]:
    if isinstance(part, Lists):
        valid = np.ones(len(rows), bool) if part.valid is None else part.valid[rows]
        return [part.rows[row].copy() if is_valid else None for row, is_valid in zip(rows.tolist(), valid, strict=True)]
    if len(rows) and rows[-1] - rows[0] == len(rows) - 1 and (np.diff(rows) == 1).all():
        picked = part.slice(int(rows[0]), len(rows))
    else:
        picked = part.take(rows)
    try:
        return picked.to_pylist()  # type: ignore[no-any-return]
    except (ValueError, OverflowError):
        for index, value in enumerate(picked):
            try:
                value.as_py()
            except (ValueError, OverflowError) as error:
                raise UnreadableError(str(error), index) from error
        raise


def _all_valid(part: Lists, rows: NDArray[np.int64]) -> bool:
    return part.valid is None or bool(part.valid[rows].all())


def _compact(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, int]:
    """Copies a batch into one mapping of its own, of the right size, that the system takes back when it is let go.

    Arrow's buffers grow by doubling and its allocator keeps what is freed: half as much again as is held.
    """
    import mmap

    import pyarrow as pa

    def write(sink: pa.NativeFile) -> None:
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)

    counter = pa.MockOutputStream()
    write(counter)
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    memory = pa.py_buffer(mmap.mmap(-1, counter.size(), **private))
    write(pa.FixedSizeBufferWriter(memory))
    return pa.ipc.open_stream(memory).read_next_batch(), memory.size


def _follow(batch: pa.RecordBatch, path: tuple[str, ...]) -> pa.Array:
    import pyarrow.compute as pc

    array = batch.column(path[0])
    return pc.struct_field(array, list(path[1:])) if len(path) > 1 else array


def _plain(array: pa.Array) -> pa.Array:
    """View arrays as the plain ones that Arrow can take rows from."""
    import pyarrow as pa

    kind = str(array.type)
    if kind in ("string_view", "binary_view"):
        return array.cast(pa.large_string() if kind == "string_view" else pa.large_binary())
    return array


def _decode(array: pa.Array) -> Decoded:
    """Lists of numbers as :class:`Lists`, sharing the memory; anything else as it is."""
    import pyarrow as pa

    kind = array.type
    if pa.types.is_fixed_size_list(kind):
        offsets = np.arange(array.offset, array.offset + len(array) + 1, dtype=np.int64) * kind.list_size
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        offsets = array.offsets.to_numpy().astype(np.int64)
    else:
        return array
    numbers = pa.types.is_integer(kind.value_type) or pa.types.is_floating(kind.value_type)
    if not (numbers or pa.types.is_boolean(kind.value_type)) or array.flatten().null_count:
        return array
    values = array.values
    if values.null_count:  # only within null lists
        values = values.fill_null(False if pa.types.is_boolean(kind.value_type) else 0)
    valid = array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None
    return Lists(Ragged(values.to_numpy(zero_copy_only=False), offsets), valid)


def _sizes(array: pa.Array, column: Decoded) -> NDArray[np.int64]:
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(column, Lists):
        return column.rows.lengths * column.rows.values.itemsize
    kind = array.type
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    if any(is_kind(kind) for is_kind in texts):
        return pc.binary_length(array).fill_null(0).to_numpy().astype(np.int64)  # type: ignore[no-any-return]
    return np.full(len(array), array.nbytes // max(len(array), 1), np.int64)
