"""``torchzephon index``: makes the line indexes of a dataset beforehand, beside the data."""

from __future__ import annotations

import argparse
import os
import shlex
from typing import TYPE_CHECKING, Any

from torchzephon.data.formats.base import KeepsIndex
from torchzephon.data.formats.registry import format_of_files, format_of_name
from torchzephon.data.shard_table import index_files
from torchzephon.data.sizes import format_bytes
from torchzephon.data.storage.listing import list_files
from torchzephon.data.storage.store import Store, StoredFile, is_local, local_path

if TYPE_CHECKING:
    _Verbs = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(verbs: _Verbs) -> None:
    """Adds the verb to the command line."""
    parser = verbs.add_parser(
        "index",
        help="find the samples of a dataset and keep where they are",
        description="Finds where the samples of each dataset are and keeps it in index files beside the data, also in "
        "an object store; in the cache directory where a local directory cannot be written. Indexes that are current "
        "stay. A training job does the same by itself, except for large remote data.",
    )
    parser.add_argument("paths", nargs="+", metavar="PATH", help="directory, glob, file, or fsspec URL of one of these")
    parser.add_argument("--format", help="format of the files; told by their names if not given")
    parser.add_argument("--workers", type=_positive, metavar="N", help="files to read at a time")
    parser.add_argument(
        "--storage-option",
        action="append",
        default=[],
        type=_pair,
        metavar="KEY=VALUE",
        help="passed to fsspec, such as anon=true; may be repeated",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Indexes each path as a dataset and prints a line for it."""
    store = Store(dict(options.storage_option), publish=True)
    for path in options.paths:
        files = list_files(local_path(path) if is_local(path) else path, store)
        data_format = format_of_name(options.format) if options.format else format_of_files(file.name for file in files)
        shards = index_files(files, data_format, store, path, shlex.quote(path), threads=options.workers)
        samples, size = sum(shard.num_samples for shard in shards), sum(shard.num_bytes for shard in shards)
        print(
            f"{path}: {_count(samples, 'sample')} in {_count(len(files), data_format.name + ' file')}, "
            f"{format_bytes(size)}; {_where(files, data_format, store)}"
        )


def _where(files: list[StoredFile], data_format: object, store: Store) -> str:
    if not isinstance(data_format, KeepsIndex):
        return "the files tell their samples themselves, no index is needed"
    kept = [data_format.kept_at(file, store) for file in files]
    elsewhere = sorted({os.path.dirname(path) for path, file in zip(kept, files, strict=True) if file.path not in path})
    if not elsewhere:
        return "indexes are beside the data"
    return f"the data's directory cannot be written, indexes are in {', '.join(elsewhere)}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"must be a number from 1 up, got {text!r}")
    return int(text)


def _pair(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"must be KEY=VALUE, got {text!r}")
    return key, {"true": True, "false": False}.get(value.lower(), value)
