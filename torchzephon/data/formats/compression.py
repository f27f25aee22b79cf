"""Compressed files as streams. pyarrow's codecs read several members and frames, and notice a missing end."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, BinaryIO, cast

from torchzephon.errors import DataError

CODECS = {".gz": "gzip", ".zst": "zstd"}
"""File name suffix -> codec."""


def decompressor(path: str, codec: str) -> Callable[[BinaryIO], BinaryIO]:
    """A function from the stream of a compressed file to the stream of its contents.

    Args:
        path: for messages.
        codec: ``"gzip"`` or ``"zstd"``.
    """

    def decompress(raw: BinaryIO) -> BinaryIO:
        return cast("BinaryIO", _Decompressed(raw, path, codec))

    return decompress


def broken(path: str, codec: str, reason: str) -> DataError:
    """The error for compressed data that cannot be read to its end."""
    return DataError(
        f"{path} is broken {codec} data ({reason}): it was probably cut off while it was written or copied, or is not "
        f"{codec} at all; copy it again, name it as what it is, or take it out of the dataset"
    )


class _Decompressed:
    """A stream that can only be read, and that names the file when it is broken."""

    def __init__(self, raw: BinaryIO, path: str, codec: str) -> None:
        import pyarrow as pa

        self._path, self._codec = path, codec
        self._stream: Any = pa.CompressedInputStream(raw, codec)

    def read(self, size: int) -> bytes:
        try:
            return cast("bytes", self._stream.read(size))
        except OSError as error:
            if type(error) is not OSError or error.errno is not None:  # the storage's error, not the codec's
                raise
            raise broken(self._path, self._codec, str(error)) from error

    def __enter__(self) -> _Decompressed:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()
