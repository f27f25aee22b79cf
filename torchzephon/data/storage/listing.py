"""Which files a path means: directories, globs, single files and lists of those, local or on any fsspec storage."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torchzephon.data.storage.store import INDEX_SUFFIX, Store, StoredFile, is_local, local_path
from torchzephon.errors import DataError


def list_files(path: str | Iterable[str], store: Store) -> list[StoredFile]:
    """The files of a dataset, in natural order (``shard-2`` before ``shard-10``), a list's entries one after another.

    A directory is searched recursively, symbolic links included. In directories and globs, names that begin with
    ``.`` or ``_``, index files, and ``README*``, ``LICENSE*``, ``*.md`` are passed over; a file that is named itself
    is always taken.

    Raises:
        DataError: for a path that matches nothing or cannot be listed, a broken symbolic link, a file listed twice, a
            name that is not UTF-8.
    """
    files: list[StoredFile] = []
    for entry in [path] if isinstance(path, str) else path:
        try:
            found = list(_local(local_path(entry), store) if is_local(entry) else _remote(entry, store))
        except DataError:
            raise
        except FileNotFoundError as error:
            if error.__cause__ is not None:  # a server that does not answer is "not found" to fsspec
                raise DataError(f"{entry} cannot be listed: {error.__cause__}") from error
            found = []
        except Exception as error:  # every fsspec storage has errors of its own
            raise DataError(f"{entry} cannot be listed: {type(error).__name__}: {error}") from error
        if not found:
            raise DataError(f"no files match {entry!r}; a path is a directory, a glob, a file, or an fsspec URL of one")
        files += sorted(found, key=lambda file: natural_key(file.name))
    seen: set[str] = set()
    for file in files:
        if file.path in seen:
            raise DataError(f"{file.path} is listed twice; to see data more often, raise its dataset's weight")
        seen.add(file.path)
        try:
            file.path.encode()
        except UnicodeEncodeError:
            raise DataError(f"the name of {file.path!a} is not UTF-8, so no table can hold it: rename it") from None
    return files


def natural_key(name: str) -> tuple[Any, ...]:
    """Sorts names with the numbers in them taken by value, directory by directory; ties by the name itself."""
    parts = [
        [(int(piece), "") if piece.isdecimal() else (-1, piece) for piece in re.split(r"([0-9]+)", part)]
        for part in name.split("/")
    ]
    return parts, name


def _wanted(name: str) -> bool:
    base = name.rsplit("/", 1)[-1]
    if any(part.startswith((".", "_")) for part in name.split("/")):
        return False
    return not base.endswith((INDEX_SUFFIX, ".md")) and not base.startswith(("README", "LICENSE"))


def _local(path: str, store: Store) -> Iterator[StoredFile]:
    if os.path.isdir(path):
        yield from _walk(path, path, store, frozenset())
    elif os.path.lexists(path):
        yield store.stat(path)
    else:
        root = _glob_root(path, os.sep) or os.sep
        for hit in glob.glob(path, recursive=True):
            if not _wanted(os.path.relpath(hit, root).replace(os.sep, "/")):
                continue
            # With "**" a glob gives directories and what they hold; plain hits of directories mean their files.
            if os.path.isdir(hit):
                if "**" not in path:
                    yield from _walk(hit, root, store, frozenset())
            else:
                yield _named(store.stat(hit), os.path.relpath(hit, root))


def _walk(directory: str, root: str, store: Store, above: frozenset[tuple[int, int]]) -> Iterator[StoredFile]:
    status = os.stat(directory)
    here = (status.st_dev, status.st_ino)
    if here in above:  # a symbolic link to a directory that holds it
        return
    with os.scandir(directory) as entries:
        for entry in entries:
            if not _wanted(entry.name):
                continue
            if entry.is_dir():
                yield from _walk(entry.path, root, store, above | {here})
            elif entry.is_file() or entry.is_symlink():
                yield _named(store.stat(entry.path), os.path.relpath(entry.path, root))


def _remote(url: str, store: Store) -> Iterator[StoredFile]:
    before, target, after = _split_chain(url)
    protocol, _, inner = target.partition("://")
    magic = "*" if protocol in ("http", "https") else "*?["
    is_glob = any(character in inner for character in magic)
    base = f"{protocol}://{_glob_root(inner, '/', magic) if is_glob else inner.rstrip('/')}"
    fs, root = store.filesystem(before + base + after)
    root = root.rstrip("/")

    def found(hits: Mapping[str, Mapping[str, Any]]) -> Iterator[StoredFile]:
        for path, details in hits.items():
            name = path[len(root) :].lstrip("/")
            if details.get("type") != "directory" and _wanted(name):
                yield _named(store.describe(f"{before}{base.rstrip('/')}/{name}{after}", details), name)

    if is_glob:
        hits = fs.glob(f"{root}/{target[len(base) :].lstrip('/')}", detail=True)
        yield from found(hits)
        if "**" not in target:
            for path, details in hits.items():
                if details.get("type") == "directory":
                    yield from found(fs.find(path, detail=True))
        return
    if target.endswith("/"):
        yield from found(fs.find(root, detail=True))
        return
    info = fs.info(root)
    if info.get("type") == "directory":
        yield from found(fs.find(root, detail=True))
    else:
        yield store.describe(url, info)


def _named(file: StoredFile, name: str) -> StoredFile:
    return StoredFile(file.path, file.size, file.version, name.replace(os.sep, "/"))


def _glob_root(pattern: str, separator: str, magic: str = "*?[") -> str:
    """The directory above the first part of a pattern that has a wildcard."""
    parts = pattern.split(separator)
    wild = (at for at, part in enumerate(parts) if any(character in part for character in magic))
    return separator.join(parts[: next(wild, len(parts) - 1)])


def _split_chain(url: str) -> tuple[str, str, str]:
    """Splits a chained fsspec URL into what stands before, the part with the path, and what stands after it."""
    links = url.split("::")
    at = next(i for i, link in enumerate(links) if "://" in link)
    before, after = links[:at], links[at + 1 :]
    return "".join(link + "::" for link in before), links[at], "".join("::" + link for link in after)
