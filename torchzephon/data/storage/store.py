"""Store: how files are found, opened and copied, on local disks and on any fsspec storage."""

from __future__ import annotations

import contextlib
import datetime
import os
import posixpath
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

from torchzephon.data.sizes import parse_bytes
from torchzephon.data.storage.cache import ShardCache
from torchzephon.data.storage.places import atomic_file, short_hash
from torchzephon.errors import DataError

INDEX_SUFFIX = ".tzindex"
"""Ends the names of the index files that lie beside data."""

_ATTEMPTS = 3
_CHUNK = 1 << 20


@dataclass(frozen=True)
class StoredFile:
    """A file as it was when it was listed.

    Attributes:
        path: absolute local path, or fsspec URL.
        size: bytes.
        version: changes when the contents do: ``"local:<mtime in ns>"``, ``"etag:..."`` or ``"time:..."``, after
            what the storage tells; None where it tells nothing.
        name: path relative to the directory that was listed, with ``/``: what the dataset's digest is made of.
    """

    path: str
    size: int
    version: str | None = None
    name: str = ""

    @property
    def is_local(self) -> bool:
        """Whether ``path`` can be opened without fsspec."""
        return is_local(self.path)

    def is_as(self, size: int, version: str | None) -> bool:
        """Whether a file of this size and version has the same contents, as far as can be told.

        The version decides where both come from the same kind of storage; what moved from a disk to an object store,
        say, is known by its size alone.
        """
        if size != self.size:
            return False
        if version is None or self.version is None or version.split(":")[0] != self.version.split(":")[0]:
            return True
        return version == self.version

    @property
    def key(self) -> tuple[str, int, str | None]:
        """Names these contents, for caches."""
        return self.path, self.size, self.version


class Store:
    """Access to the files of a dataset. Local paths never touch fsspec.

    Pickles; a deep copy is the store itself; may be used from several threads and after a fork.

    Args:
        storage_options: passed to fsspec, such as ``{"anon": True}``.
        cache_dir: directory for local copies of remote and compressed files; None for ``shards`` in
            :func:`~torchzephon.data.storage.places.cache_root`.
        cache_size: bound on the bytes in it, an int or ``"500GB"``; None for no bound.
        publish: whether index files are written beside remote data too, as ``torchzephon index`` does.

    Raises:
        TypeError: for a ``cache_dir`` or ``cache_size`` of another type.
        ValueError: for a ``cache_size`` that is no size.
    """

    def __init__(
        self,
        storage_options: Mapping[str, Any] | None = None,
        *,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_size: int | str | None = None,
        publish: bool = False,
    ) -> None:
        self.storage_options = dict(storage_options or {})
        directory = None if cache_dir is None else os.path.abspath(os.path.expanduser(os.fspath(cache_dir)))
        self.cache = ShardCache(directory, None if cache_size is None else parse_bytes(cache_size, "cache_size"))
        self.publish = publish

    def with_cache(self, cache_dir: str | os.PathLike[str] | None, cache_size: int | str | None) -> Store:
        """The same storage with another shard cache."""
        return Store(self.storage_options, cache_dir=cache_dir, cache_size=cache_size, publish=self.publish)

    def filesystem(self, url: str) -> tuple[Any, str]:
        """The fsspec file system of a URL (one per process, kept by fsspec) and the path within it."""
        import fsspec

        return cast("tuple[Any, str]", fsspec.core.url_to_fs(url, **self.storage_options))

    def stat(self, path: str) -> StoredFile:
        """Looks a file up.

        Raises:
            DataError: for a file that is not there.
        """
        try:
            if is_local(path):
                path = local_path(path)
                status = os.stat(path)
                return StoredFile(path, status.st_size, f"local:{status.st_mtime_ns}", os.path.basename(path))
            fs, inner = self.filesystem(path)
            return self.describe(path, fs.info(inner))
        except FileNotFoundError:
            kind = "is a broken symbolic link" if os.path.islink(path) else "does not exist"
            raise DataError(f"{path} {kind}") from None

    def describe(self, url: str, info: Mapping[str, Any]) -> StoredFile:
        """Makes a StoredFile of what fsspec tells about a URL."""
        if info.get("size") is None:  # some listings, HTTP's for one, hold names only
            fs, inner = self.filesystem(url)
            info = fs.info(inner)
        if info.get("size") is None:
            raise DataError(f"{url}: the storage does not tell the file's size; copy it to where it does")
        name = posixpath.basename(url.split("::")[0].split("://", 1)[-1].split("?")[0])
        return StoredFile(url, int(info["size"]), _version(info), name)

    def check(self, file: StoredFile) -> None:
        """Looks whether a file is still as it was.

        Raises:
            DataError: when it is gone or its size or version differ.
        """
        now = self.stat(file.path)
        if not file.is_as(now.size, now.version):
            raise changed(file, now.size)

    def open(self, file: StoredFile) -> BinaryIO:
        """Opens a file where it lies, for reading; it can seek, except for HTTP servers without ranges.

        Raises:
            DataError: when it is gone.
        """
        try:
            if file.is_local:
                return open(file.path, "rb")
            fs, inner = self.filesystem(file.path)
            return cast("BinaryIO", fs.open(inner, "rb"))
        except FileNotFoundError:
            raise DataError(f"{file.path} does not exist any more") from None

    def open_local(
        self, file: StoredFile, size: int | None = None, convert: Callable[[BinaryIO], BinaryIO] | None = None
    ) -> BinaryIO:
        """Opens a local file with a descriptor, unbuffered: the file itself, or a copy of it in the shard cache.

        Args:
            file: the file.
            size: bytes of the copy, where it is converted.
            convert: makes the stream that is copied from the stream of the file, to decompress it.

        Raises:
            DataError: when the file is gone, has changed, cannot be fetched, or does not fit into the shard cache.
        """
        if file.is_local and convert is None:
            try:
                opened = open(file.path, "rb", buffering=0)  # noqa: SIM115 - handed out
            except FileNotFoundError:
                raise DataError(f"{file.path} does not exist any more") from None
            return opened

        def fill(out: BinaryIO) -> None:
            self.check(file)
            for chunk in self.chunks(file, convert):
                out.write(chunk)

        converter = getattr(convert, "__name__", "")
        key = f"{short_hash(*file.key, converter)[:16]}-{file.name.rsplit('/', 1)[-1][-100:]}"
        return self.cache.open(key, file.size if size is None else size, fill)

    def chunks(self, file: StoredFile, convert: Callable[[BinaryIO], BinaryIO] | None = None) -> Iterator[bytes]:
        """Streams a file, about a megabyte at a time.

        Raises:
            DataError: for compressed data that is broken or cut off, and where reading keeps failing.
        """
        done = 0
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                with self._open_stream(file) as raw, convert(raw) if convert else contextlib.nullcontext(raw) as stream:
                    skip = done
                    while chunk := stream.read(_CHUNK):
                        if skip >= len(chunk):  # what an attempt before this one gave
                            skip -= len(chunk)
                            continue
                        chunk, skip = chunk[skip:], 0
                        done += len(chunk)
                        yield chunk
                return
            except DataError:
                raise
            except Exception as error:
                # Networks fail for a moment; every fsspec storage has errors of its own for it. Local disks do not.
                if file.is_local or attempt == _ATTEMPTS:
                    raise DataError(f"{file.path} cannot be read: {error}") from error
                time.sleep(attempt)

    def _open_stream(self, file: StoredFile) -> BinaryIO:
        if not file.path.startswith(("http://", "https://")):
            return self.open(file)
        fs, inner = self.filesystem(file.path)
        # Without ranges, a server can only be read from the beginning, in one go.
        blocks = {} if fs.info(inner).get("partial") else {"block_size": 0}
        return cast("BinaryIO", fs.open(inner, "rb", **blocks))

    def write_beside(self, file: StoredFile, name_suffix: str, chunks: list[bytes]) -> str | None:
        """Writes a small file beside a data file, atomically.

        Returns:
            Its path; None where the place cannot be written, or is remote and this store does not publish.
        """
        path = beside(file.path, name_suffix)
        if not file.is_local:
            if not self.publish:
                return None
            fs, inner = self.filesystem(path)
            fs.pipe_file(inner, b"".join(chunks))
            return path
        try:
            with atomic_file(path) as out:
                out.writelines(chunks)
        except OSError:
            return None
        return path

    def read_beside(self, file: StoredFile, name_suffix: str) -> bytes | None:
        """Reads a small file beside a remote data file; None where there is none."""
        fs, inner = self.filesystem(beside(file.path, name_suffix))
        try:
            return cast("bytes", fs.cat_file(inner))
        except (FileNotFoundError, PermissionError):  # S3 answers so where listing is not allowed
            return None

    def __deepcopy__(self, memo: dict[int, Any]) -> Store:
        return self


def changed(file: StoredFile, size: int) -> DataError:
    """The error for a file that is not as it was indexed."""
    return DataError(
        f"{file.path} has changed since it was indexed (from {file.size} to {size} bytes): data must not change while "
        f"a job runs; put it back, or start the job anew to index it again"
    )


def beside(path: str, name_suffix: str) -> str:
    """The path of a file with a longer name in the same place; of a chained URL, its first path grows."""
    links = path.split("::")
    at = next((i for i, link in enumerate(links) if "://" in link), 0)
    links[at] += name_suffix
    return "::".join(links)


def is_local(path: str) -> bool:
    """Whether a path or URL can be opened without fsspec."""
    return path.startswith("file://") or "://" not in path


def local_path(path: str) -> str:
    """The absolute path of a local path or ``file://`` URL, with ``~`` expanded."""
    return os.path.abspath(os.path.expanduser(path.removeprefix("file://")))


def _version(info: Mapping[str, Any]) -> str | None:
    for key in ("ETag", "etag", "md5", "md5Hash", "content_md5"):
        if info.get(key):
            return f"etag:{str(info[key]).strip(chr(34))}"
    for key in ("mtime", "LastModified", "Last-Modified", "last_modified", "updated", "modified", "created"):
        if info.get(key):  # some storages give a datetime for a file and a number in a listing
            return f"time:{info[key].timestamp() if isinstance(info[key], datetime.datetime) else info[key]}"
    return None
