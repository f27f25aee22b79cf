"""Rows of Arrow, copied into memory of the right size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torchzephon.data.formats.mappings import lease

if TYPE_CHECKING:
    import pyarrow as pa


def compact(batch: pa.RecordBatch, columns: Mapping[str, tuple[str, ...]]) -> tuple[pa.RecordBatch, int]:
    """Copies columns into a mapping of their own, of the right size, that is used again when it is let go.

    Arrow's buffers grow by doubling and its allocator keeps what is freed: half as much again as is held.

    Args:
        batch: the rows.
        columns: new name -> path to the column: its name, then names of struct fields.

    Returns:
        The columns by their new names, and the bytes of the mapping.
    """
    import pyarrow as pa

    arrays = [_plain(_follow(batch, path)) for path in columns.values()]
    batch = pa.RecordBatch.from_arrays(arrays, list(columns))

    def write(sink: pa.NativeFile) -> None:
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)

    counter = pa.MockOutputStream()
    write(counter)
    memory, kept = lease(counter.size())
    write(pa.FixedSizeBufferWriter(memory))
    return pa.ipc.open_stream(kept).read_next_batch(), kept.size


def _follow(batch: pa.RecordBatch, path: tuple[str, ...]) -> pa.Array:
    import pyarrow.compute as pc

    array = batch.column(path[0])
    return pc.struct_field(array, list(path[1:])) if len(path) > 1 else array


def _plain(array: pa.Array) -> pa.Array:
    """Views as the arrays that they are views of, dictionaries of text as text: what rows can be taken from."""
    import pyarrow as pa

    kind = array.type
    if pa.types.is_dictionary(kind):
        return _plain(array.dictionary_decode())
    if str(kind) in ("string_view", "binary_view"):
        return array.cast(pa.large_string() if str(kind) == "string_view" else pa.large_binary())
    return array
