"""How often web-shaped Parquet is decoded, and what it costs, with many lanes over large row groups.

Makes three datasets of text in zstd Parquet with large row groups, and reads one pass of their mixture with many
lanes, each taking as much text as the others round after round, as training does. Every row decoded more often than
it is used is wasted work: the pool was too small for the lanes' working set.

    python benchmarks/parquet_reads.py --gigabytes 4 --lanes 64 --memory 2GB
"""

from __future__ import annotations

import argparse
import copy
import multiprocessing
import os
import resource
import tempfile
import time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import torchzephon as tz
from torchzephon.data.formats import parquet_file
from torchzephon.data.sizes import format_bytes, parse_bytes

SHARES = {"web": 0.6, "code": 0.25, "books": 0.15}
BYTES_A_ROUND = 64 << 10


def make_dataset(directory: str, total: int, row_group: int, mean: int, seed: int) -> None:
    """Writes documents of log-normal length (mean ``mean`` bytes) in files of four row groups."""
    rng = np.random.default_rng(seed)
    letters = rng.integers(97, 123, (50_000, 12), dtype=np.uint8)
    letters[np.arange(12) >= rng.integers(2, 11, (50_000, 1))] = 32
    os.makedirs(directory)
    for number in range(max(1, round(total / (4 * row_group)))):
        schema = pa.schema({"text": pa.large_string(), "id": pa.int64()})
        with pq.ParquetWriter(f"{directory}/{number:03d}.parquet", schema, compression="zstd") as writer:
            for _ in range(4):
                lengths = np.maximum(rng.lognormal(np.log(mean) - 0.5, 1, row_group // mean), 1).astype(np.int64)
                offsets = np.append(0, np.cumsum(lengths))
                text = letters[rng.zipf(1.2, int(offsets[-1]) // 12 + 1) % 50_000].reshape(-1)
                array = pa.Array.from_buffers(
                    pa.large_string(), len(lengths), [None, pa.py_buffer(offsets), pa.py_buffer(text)]
                )
                writer.write_table(pa.table({"text": array, "id": rng.integers(0, 2**40, len(lengths))}), 2**40)


def measure(directory: str, lanes: int, memory: str, shuffle: bool, results: Any) -> None:
    """Reads one pass; puts the figures on a queue."""
    decoded = 0

    class Counting(parquet_file.Decoding):
        def __next__(self) -> Any:
            nonlocal decoded
            batch, nbytes = super().__next__()
            decoded += batch.num_rows
            return batch, nbytes

    parquet_file.Decoding = Counting  # type: ignore[misc]
    datasets = [tz.Dataset(name, f"{directory}/{name}", columns=["text"]) for name in SHARES]
    source = tz.MixtureWorkSource(datasets, shuffle_within_shard=shuffle)
    template = tz.Reader(source, memory=memory)
    readers = [copy.deepcopy(template) for _ in range(lanes)]
    for lane, reader in enumerate(readers):
        reader._leaf.bind_lane(lane, lanes)
        reader.reset()
    used = size = 0
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    read = dict.fromkeys(range(lanes), 0)
    start = time.perf_counter()
    target = 0
    while read:
        target += BYTES_A_ROUND
        for lane in list(read):
            while read.get(lane, target) < target:
                block = next(readers[lane], None)
                if block is None:
                    del read[lane]
                else:
                    read[lane] += sum(map(len, block.columns["text"]))
                    size += sum(map(len, block.columns["text"]))
                    used += len(block)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - base
    results.put((used, decoded, size, seconds, template._pool.stats.peak, peak))


def main() -> None:
    """Makes the data, measures both orders in fresh processes, prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=0.5, help="text in all datasets (default: %(default)s)")
    parser.add_argument("--row-group", default="96MB", help="text in a row group (default: %(default)s)")
    parser.add_argument("--lanes", type=int, default=64)
    parser.add_argument("--memory", default="2GB", help="Reader(memory=...) (default: %(default)s)")
    parser.add_argument("--keep", help="directory to keep the data in, and to find it in again")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        directory = args.keep or temporary
        for seed, (name, weight) in enumerate(SHARES.items()):
            if not os.path.exists(f"{directory}/{name}"):
                total, row_group = int(args.gigabytes * 1e9 * weight), parse_bytes(args.row_group)
                make_dataset(f"{directory}/{name}", total, row_group, 4000, seed)
        print("| order | rows used | decoded / used | pool's peak | growth of RSS | rows/s | text |")
        print("|---|---|---|---|---|---|---|")
        for order in ("in order", "shuffle_within_shard"):
            context = multiprocessing.get_context("spawn")
            results = context.Queue()
            arguments = directory, args.lanes, args.memory, order != "in order", results
            process = context.Process(target=measure, args=arguments)
            process.start()
            used, decoded, size, seconds, pool, peak = results.get()
            process.join()
            print(
                f"| {order} | {used} | {decoded / used:.3f} | {format_bytes(pool)} | {format_bytes(peak)} "
                f"| {used / seconds:.0f} | {size / seconds / 1e6:.0f} MB/s |"
            )


if __name__ == "__main__":
    main()
