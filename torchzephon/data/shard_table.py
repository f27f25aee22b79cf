"""The shards of a dataset: each file is indexed once, in parallel, by one process of the machine."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import orjson

from torchzephon.data.formats.base import Format, KeepsIndex, Shard
from torchzephon.data.sizes import format_bytes
from torchzephon.data.storage.places import atomic_file, cache_root, node_lock, short_hash
from torchzephon.data.storage.store import Store, StoredFile
from torchzephon.errors import DataError

logger = logging.getLogger(__name__)

_VERSION = 1  # another one whenever the table, or what any format makes of a file, is another
_REMOTE_THREADS = 32
REMOTE_LIMIT = 10 * 10**9
"""Bytes that are fetched, at most, to find the lines of remote data."""


def find_shards(files: Sequence[StoredFile], data_format: Format, store: Store, name: str, place: str) -> list[Shard]:
    """Indexes files, or reads the table that another process, or an earlier run, has left in the cache directory.

    However many processes start at once, one indexes and the others wait for it. The table holds for files of the
    same names, sizes and versions; one that is damaged is made anew.

    Args:
        files: of the dataset, in order.
        data_format: of all of them.
        store: where they lie.
        name: of the dataset, for the progress bar.
        place: paths of the dataset as a shell takes them: they name the table, and stand in a refusal's command.

    Raises:
        DataError: for a file that is broken, and for remote data whose lines only reading all of it would tell.
    """
    path = os.path.join(cache_root(), "tables", short_hash(data_format.name, place) + ".json")
    key = short_hash(_VERSION, [file.key for file in files])
    shards = _load(path, key, files)
    if shards is None:
        with node_lock(path):
            shards = _load(path, key, files)
            if shards is None:
                shards = index_files(files, data_format, store, name, place)
                _save(path, key, files, shards)
    return shards


def index_files(
    files: Sequence[StoredFile],
    data_format: Format,
    store: Store,
    name: str,
    place: str,
    *,
    threads: int | None = None,
) -> list[Shard]:
    """Indexes files in parallel, with a progress bar when it takes more than a second.

    Args:
        files: see :func:`find_shards`, as for the other arguments and errors.
        data_format: of all files.
        store: where they lie; one that publishes may read any amount of remote data.
        name: of the dataset.
        place: paths of the dataset.
        threads: files at a time; None for one a core, and 32 where data are remote.
    """
    from tqdm import tqdm

    started = time.monotonic()
    is_local = all(file.is_local for file in files)
    threads = threads or ((os.cpu_count() or 1) if is_local else _REMOTE_THREADS)
    executor = ThreadPoolExecutor(min(threads, len(files)), thread_name_prefix="torchzephon-index")
    bar = tqdm(total=len(files), desc=f"indexing {name}", unit=" files", delay=1, leave=False, disable=None)
    try:
        found: dict[StoredFile, Sequence[Shard]] = {}
        if isinstance(data_format, KeepsIndex):
            recall = data_format.recall
            for file, kept in zip(files, executor.map(lambda file: recall(file, store), files), strict=True):
                if kept is not None:
                    found[file] = kept
                    bar.update()
        missing = [file for file in files if file not in found]
        if isinstance(data_format, KeepsIndex) and not store.publish:
            _refuse_large(missing, data_format, place)
        for file, made in zip(missing, executor.map(lambda file: data_format.index(file, store), missing), strict=True):
            found[file] = made
            bar.update()
    finally:
        executor.shutdown(cancel_futures=True)
        bar.close()
    logger.info("indexed %d files of %s in %.1f s", len(files), name, time.monotonic() - started)
    return [shard for file in files for shard in found[file]]


def _refuse_large(missing: Sequence[StoredFile], data_format: Format, place: str) -> None:
    size = sum(file.size for file in missing if not file.is_local)
    if size > REMOTE_LIMIT:
        raise DataError(
            f"{format_bytes(size)} of remote {data_format.name} data have no line index, and finding the lines means "
            f"reading all of it (done by itself up to {format_bytes(REMOTE_LIMIT)}); make the index once, near the "
            f"data, with: torchzephon index {place} --format {data_format.name}"
        )


def _load(path: str, key: str, files: Sequence[StoredFile]) -> list[Shard] | None:
    try:
        with open(path, "rb") as stored:
            table = orjson.loads(stored.read())
        if table["key"] != key:
            return None
        return [Shard(files[at], rows, size, part) for at, rows, size, part in table["shards"]]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, IndexError) as error:
        logger.warning("the table %s is damaged (%s) and is made anew", path, error)
        return None


def _save(path: str, key: str, files: Sequence[StoredFile], shards: Sequence[Shard]) -> None:
    at = {file: number for number, file in enumerate(files)}
    rows = [[at[shard.file], shard.num_samples, shard.num_bytes, shard.part] for shard in shards]
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with atomic_file(path) as out:
            out.write(orjson.dumps({"key": key, "shards": rows}))
    except OSError as error:
        logger.warning("the table of shards cannot be kept, the next start makes it anew: %s", error)
