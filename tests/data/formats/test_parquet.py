import datetime
import os
import pickle
import threading
from collections import deque
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from unittest import mock

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.threads import in_threads

from torchzephon.data.formats import parquet, parquet_file
from torchzephon.data.formats.parquet import ParquetFormat
from torchzephon.data.pool import Pool
from torchzephon.data.ragged import Ragged
from torchzephon.data.storage.store import Store
from torchzephon.errors import DataError


def write(path, columns, **options):
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    pq.write_table(table, path, **options)
    return str(path)


def open_shards(path, store=None):
    store = store or Store()
    return ParquetFormat().index(store.stat(path), store)


def read(shard, rows, columns=None, pool=None, store=None):
    columns = {name: name for name in columns} if isinstance(columns, list) else columns
    return ParquetFormat().read(
        shard, np.asarray(rows, np.int64), columns, store or Store(), pool if pool is not None else Pool(10**9)
    )


def plain(column):
    """A column as Python objects."""
    return [value.tolist() if isinstance(value, np.ndarray) else value for value in column]


@pytest.fixture
def small_units(monkeypatch):
    """Shards, units and chunks of a few rows."""
    monkeypatch.setattr(parquet, "SHARD_BYTES", 700)
    monkeypatch.setattr(parquet_file, "UNIT_BYTES", 200)
    monkeypatch.setattr(parquet_file, "PIECE_BYTES", 60)


COLUMNS = {
    "string": pa.array(["a", None, "é😀", ""]),
    "large_string": pa.array(["a", None, "é", ""], pa.large_string()),
    "string_view": pa.array(["a", None, "longer than twelve bytes", ""], pa.string_view()),
    "binary": pa.array([b"a", None, b"\xff", b""]),
    "large_binary": pa.array([b"a", None, b"\xff", b""], pa.large_binary()),
    "fixed_binary": pa.array([b"ab", None, b"cd", b"ef"], pa.binary(2)),
    "binary_view": pa.array([b"a", None, b"\xff", b""], pa.binary_view()),
    "dictionary": pa.array(["x", "y", None, "x"]).dictionary_encode(),
    "int": pa.array([1, None, -3, 2**62]),
    "float": pa.array([1.5, None, float("inf"), 0.0]),
    "bool": pa.array([True, None, False, True]),
    "null": pa.nulls(4),
    "date": pa.array([datetime.date(2020, 1, 2), None, datetime.date(1, 1, 1), datetime.date(9999, 12, 31)]),
    "timestamp": pa.array([datetime.datetime(2020, 1, 2, 3), None] * 2, pa.timestamp("us")),
    "struct": pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}, {"a": 3, "b": None}]),
    "messages": pa.array([[{"role": "user", "content": "hi"}], [], None, [{"role": "x", "content": None}] * 2]),
    "strings": pa.array([["a", "b"], [], None, [None]]),
    "nested": pa.array([[[1], []], [], None, [[2, 3]]]),
    "ints_with_null": pa.array([[1, None], [], [2], [3]]),
    "map": pa.array([[("k", 1)], [], None, [("l", 2)]], pa.map_(pa.string(), pa.int64())),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_every_type_comes_as_python_objects(tmp_path, name):
    (shard,) = open_shards(write(tmp_path / "a.parquet", {name: COLUMNS[name]}))
    expected = COLUMNS[name].to_pylist()
    for rows in ([0, 1, 2, 3], [2, 3], [3, 0, 0, 2], [1]):
        column = read(shard, rows)[name]
        assert isinstance(column, list)
        assert plain(column) == [expected[row] for row in rows]


LISTS = {
    "int32": pa.array([[1, 2], [], [3], [4, 5, 6]], pa.list_(pa.int32())),
    "int64": pa.array([[1, 2], [], [3], [2**62]], pa.list_(pa.int64())),
    "uint16": pa.array([[1, 65535], [], [3], [4]], pa.list_(pa.uint16())),
    "large_list": pa.array([[1, 2], [], [3], [4, 5, 6]], pa.large_list(pa.int32())),
    "fixed_size_list": pa.array([[1, 2], [3, 4], [5, 6], [7, 8]], pa.list_(pa.int16(), 2)),
    "bool": pa.array([[True, False], [], [True], [False]]),
    "float": pa.array([[0.5], [], [1.0, 2.0], [3.0]], pa.list_(pa.float32())),
}


@pytest.mark.parametrize("name", LISTS)
def test_lists_of_numbers_are_ragged(tmp_path, name):
    (shard,) = open_shards(write(tmp_path / "a.parquet", {"ids": LISTS[name]}))
    expected = LISTS[name].to_pylist()
    for rows in ([0, 1, 2, 3], [1, 2], [3, 0, 0, 2], [1]):
        column = read(shard, rows)["ids"]
        assert isinstance(column, Ragged)
        assert plain(column) == [expected[row] for row in rows]
        assert column.values.dtype == np.dtype(LISTS[name].type.value_type.to_pandas_dtype())


@pytest.mark.parametrize("kind", [pa.list_(pa.int32()), pa.large_list(pa.int32()), pa.list_(pa.int32(), 2)])
def test_null_lists_are_none_and_only_where_they_are(tmp_path, kind):
    values = [[1, 2], None, [5, 6], [7, 8]]
    (shard,) = open_shards(write(tmp_path / "a.parquet", {"ids": pa.array(values, kind)}))
    column = read(shard, [3, 1, 0])["ids"]
    assert isinstance(column, list)
    assert column[1] is None
    assert column[0].dtype == np.int32
    assert plain(column) == [[7, 8], None, [1, 2]]
    assert isinstance(read(shard, [2, 3, 0])["ids"], Ragged)


@pytest.mark.parametrize("rows", [[5, 6], [6, 5], [5]])
def test_lists_are_views_only_where_they_cannot_be_changed(tmp_path, rows):
    (shard,) = open_shards(write(tmp_path / "a.parquet", {"ids": pa.array([[1] * 1000] * 100, pa.list_(pa.int32()))}))
    values = read(shard, rows)["ids"].values
    assert values.flags.owndata or not values.flags.writeable


def test_columns_are_selected_renamed_and_found_in_structs(tmp_path):
    table = {
        "text": pa.array(["a", "b", "c"]),
        "meta": pa.array([{"lang": "en", "ids": [1, 2], "deep": {"x": 1}}, None, {"lang": None, "ids": [3]}]),
        "a.b": pa.array([1, 2, 3]),
        "unused": pa.array([b"x"] * 3),
    }
    (shard,) = open_shards(write(tmp_path / "a.parquet", table))
    columns = {"content": "text", "lang": "meta.lang", "ids": "meta.ids", "x": "meta.deep.x", "dotted": "a.b"}
    got = read(shard, [0, 2], columns)
    assert list(got) == list(columns)
    assert {name: plain(column) for name, column in got.items()} == {
        "content": ["a", "c"],
        "lang": ["en", None],
        "ids": [[1, 2], [3]],
        "x": [1, None],
        "dotted": [1, 3],
    }
    assert isinstance(got["ids"], Ragged)
    assert read(shard, [1], {"lang": "meta.lang", "twice": "meta.lang"}) == {"lang": [None], "twice": [None]}


def test_only_the_selected_columns_are_decoded(tmp_path):
    (shard,) = open_shards(write(tmp_path / "a.parquet", {"small": [1] * 100, "large": ["x" * 10_000] * 100}))
    pool = Pool(10**9)
    read(shard, [0], ["small"], pool)
    assert pool.stats.bytes < 100_000


@pytest.mark.parametrize("wanted", ["content", "meta.nothing", "text.x", "meta.lang.x"])
def test_a_missing_column_is_named_with_the_file_and_the_columns_there_are(tmp_path, wanted):
    path = write(tmp_path / "a.parquet", {"text": ["a"], "meta": [{"lang": "en"}]})
    (shard,) = open_shards(path)
    with pytest.raises(DataError) as error:
        read(shard, [0], {"new": wanted})
    assert str(error.value) == f"{path}: no column {wanted!r}; it has 'text', 'meta'"
    assert error.value.row is None


def test_a_column_that_is_there_twice_is_refused(tmp_path):
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], ["a", "a", "b"])
    path = write(tmp_path / "a.parquet", table)
    (shard,) = open_shards(path)
    assert read(shard, [0], ["b"]) == {"b": [3]}
    with pytest.raises(DataError, match=r"2 columns are named 'a'"):
        read(shard, [0])


def test_shards_are_runs_of_row_groups(tmp_path, monkeypatch):
    path = write(tmp_path / "a.parquet", {"i": list(range(100)), "s": ["x"] * 100}, row_group_size=10)
    metadata = pq.read_metadata(path)
    sizes = [metadata.row_group(group).total_byte_size for group in range(10)]
    assert [(shard.num_samples, shard.part) for shard in open_shards(path)] == [(100, [0, 10])]
    monkeypatch.setattr(parquet, "SHARD_BYTES", sum(sizes[:3]))
    shards = open_shards(path)
    assert [shard.part for shard in shards] == [[0, 3], [3, 6], [6, 9], [9, 10]]
    assert [shard.num_samples for shard in shards] == [30, 30, 30, 10]
    assert sum(shard.num_bytes for shard in shards) == sum(sizes)
    assert [read(shard, [0, shard.num_samples - 1])["i"] for shard in shards] == [[0, 29], [30, 59], [60, 89], [90, 99]]
    assert pickle.loads(pickle.dumps(shards)) == shards


def test_a_file_without_rows_has_no_samples(tmp_path):
    path = write(tmp_path / "a.parquet", pa.table({"i": pa.array([], pa.int64())}))
    assert sum(shard.num_samples for shard in open_shards(path)) == 0


def test_empty_row_groups_are_passed_over(tmp_path):
    schema = pa.schema({"i": pa.int64()})
    with pq.ParquetWriter(tmp_path / "a.parquet", schema) as writer:
        for start, count in ((0, 0), (0, 3), (3, 0), (3, 2), (5, 0)):
            writer.write_table(pa.table({"i": list(range(start, start + count))}, schema))
    with mock.patch.object(parquet_file, "UNIT_BYTES", 1):
        (shard,) = open_shards(str(tmp_path / "a.parquet"))
        assert shard.num_samples == 5
        assert read(shard, [4, 0, 2, 3])["i"] == [4, 0, 2, 3]


def test_no_rows_give_no_columns(tmp_path):
    (shard,) = open_shards(write(tmp_path / "a.parquet", {"i": [1]}))
    assert read(shard, []) == {}


def test_indexing_reads_no_rows(tmp_path):
    path = write(tmp_path / "a.parquet", {"s": [os.urandom(100) for _ in range(1000)]})
    with open(path, "r+b") as file:
        file.seek(100)
        file.write(b"\xff" * 50_000)
    assert [shard.num_samples for shard in open_shards(path)] == [1000]


def test_a_unit_is_decoded_once(tmp_path, small_units):
    (*_, shard) = shards = open_shards(
        write(tmp_path / "a.parquet", {"i": list(range(300)), "s": [f"{i:20d}" for i in range(300)]}, row_group_size=6)
    )
    assert len(shards) > 2
    pool = Pool(10**9)
    every = np.random.default_rng(0).permutation(shard.num_samples)
    with mock.patch.object(parquet_file, "compact", wraps=parquet_file.compact) as pieces:
        ParquetFormat().row_bytes(shard, every, None, Store(), pool)
        for row in every:
            assert is_held(shard, [row], pool)
            read(shard, [row], None, pool)
    assert sum(call.args[0].num_rows for call in pieces.call_args_list) == shard.num_samples


def test_a_unit_is_let_go_when_all_its_rows_were_read(tmp_path, small_units, monkeypatch):
    monkeypatch.setattr(parquet_file, "PIECE_BYTES", 10**6)
    (shard, *_) = open_shards(write(tmp_path / "a.parquet", {"i": list(range(300))}, row_group_size=6))
    pool = Pool(10**9)
    every = np.arange(shard.num_samples)
    read(shard, every[:-1], None, pool)
    held = pool.stats.bytes
    assert not is_held(shard, every, pool)
    assert is_held(shard, every[-2:], pool)
    read(shard, every[-1:], None, pool)
    assert not is_held(shard, every[-2:], pool)
    assert 0 < pool.stats.bytes < held  # the footer stays
    assert plain(read(shard, every, None, pool)["i"]) == every.tolist()  # the next epoch


def pieces_of(tmp_path, monkeypatch, rows=100, pieces=10):
    """A file of one row group that is decoded in pieces of ten rows, 8 KB each."""
    path = tmp_path / "a.parquet"
    table = {"ids": [[row] * 200 for row in range(rows)]}
    write(path, table, compression="none", use_dictionary=False)
    size = pq.read_metadata(path).row_group(0).total_byte_size
    monkeypatch.setattr(parquet_file, "PIECE_BYTES", size // pieces)
    (shard,) = open_shards(str(path))
    return shard


def open_files(folder):
    return [name for fd in os.listdir("/proc/self/fd") if (name := link(fd)).startswith(str(folder))]


def link(fd):
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""


def is_held(shard, rows, pool):
    return not ParquetFormat().to_decode(shard, np.asarray(rows), None, Store(), pool)


def firsts(shard, rows, pool, store=None):
    return [int(ids[0]) for ids in read(shard, rows, None, pool, store)["ids"]]


def test_who_reads_in_order_holds_a_piece_or_two(tmp_path, monkeypatch):
    shard = pieces_of(tmp_path, monkeypatch)
    pool = Pool(10**9)
    monkeypatch.setattr(parquet_file.Decoding, "nbytes", 0)
    for row in range(0, 95, 5):
        assert not is_held(shard, [row], pool) or row % 10
        assert firsts(shard, range(row, row + 5), pool) == list(range(row, row + 5))
        assert [is_held(shard, [other], pool) for other in (5, 15, 95)] == [row == 0, row == 10, row == 90]
        assert pool.stats.bytes < 25_000
        assert len(open_files(tmp_path)) == (row < 90)  # until the last piece is decoded
    assert firsts(shard, range(95, 100), pool) == list(range(95, 100))
    assert firsts(shard, [3, 99], pool) == [3, 99]  # again


@pytest.mark.parametrize("gone", ["read", "evicted"])
def test_what_was_to_be_decoded_and_is_not_needed_any_more_is_not(tmp_path, monkeypatch, gone):
    shard = pieces_of(tmp_path, monkeypatch)
    pool = Pool(10**9)
    (decode,) = ParquetFormat().to_decode(shard, np.arange(100), None, Store(), pool)
    with mock.patch.object(parquet_file, "compact", wraps=parquet_file.compact) as pieces:
        if gone == "read":
            assert firsts(shard, range(100), pool) == list(range(100))
        else:
            pool.make_room(10**9)
        decoded = len(pieces.call_args_list)
        decode()
        assert len(pieces.call_args_list) == decoded == (10 if gone == "read" else 0)


@pytest.mark.parametrize(("columns", "pieces"), [({"n": "i"}, 1), ({"t": "t"}, 10), (None, 11)])
def test_pieces_are_as_large_as_what_is_read_of_them(tmp_path, monkeypatch, columns, pieces):
    path = str(tmp_path / "a.parquet")
    table = {"i": list(range(1000)), "t": [f"{i:0100d}" for i in range(1000)]}
    write(tmp_path / "a.parquet", table, compression="none", use_dictionary=False)
    monkeypatch.setattr(parquet_file, "PIECE_BYTES", 10_500)
    (shard,) = open_shards(path)
    with mock.patch.object(parquet_file, "compact", wraps=parquet_file.compact) as compacted:
        read(shard, range(1000), columns, Pool(10**9))
    assert len(compacted.call_args_list) == pieces


def test_rows_that_were_let_go_of_are_decoded_again(tmp_path, monkeypatch):
    shard = pieces_of(tmp_path, monkeypatch)
    pool = Pool(10**9)
    assert firsts(shard, range(35), pool) == list(range(35))
    assert not is_held(shard, [0], pool)
    assert is_held(shard, [35], pool)
    assert firsts(shard, [0, 36], pool) == [0, 36]
    assert is_held(shard, [0], pool)


def decoded_rows(monkeypatch):
    """How many rows were decoded, in a list that grows."""
    counts = []
    compact = parquet_file.compact
    monkeypatch.setattr(
        parquet_file, "compact", lambda batch, paths: (counts.append(len(batch)), compact(batch, paths))[1]
    )
    return counts


@pytest.mark.parametrize("lag", [0, 1, 25, 70])
def test_two_readers_of_the_same_rows_do_not_decode_them_again_and_again(tmp_path, monkeypatch, lag):
    shard = pieces_of(tmp_path, monkeypatch, rows=1000, pieces=100)
    counts, pool = decoded_rows(monkeypatch), Pool(10**9)
    for step in range(0, 1000 + lag, 5):
        for start in (step, step - lag):
            rows = range(max(start, 0), min(start + 5, 1000))
            if rows:
                assert firsts(shard, rows, pool) == list(rows)
    assert sum(counts) <= 3 * 1000


def test_lanes_in_different_epochs_do_not_decode_rows_again_and_again(tmp_path, monkeypatch):
    shard = pieces_of(tmp_path, monkeypatch, rows=1000, pieces=100)
    counts, pool = decoded_rows(monkeypatch), Pool(10**9)
    for step in range(0, 10_000, 5):  # ten epochs of each
        for lane in range(4):
            start = (step + 250 * lane) % 1000
            assert firsts(shard, range(start, start + 5), pool) == list(range(start, start + 5))
    assert sum(counts) <= 42 * 1000


def test_too_little_memory_is_not_taken_for_bad_data():
    assert not parquet_file._is_broken(pa.ArrowMemoryError("malloc of size 64 failed"))
    assert parquet_file._is_broken(pa.ArrowInvalid("bad page"))


def test_what_could_not_be_read_counts_as_not_read(tmp_path, monkeypatch):
    """With on_error="skip" the good rows of a block are asked for again: they must not be decoded again."""
    text = pa.array([b"good"] * 29 + [b"bad \xff"]).cast(pa.binary()).view(pa.string())
    path = write(tmp_path / "a.parquet", {"text": text}, row_group_size=10)
    monkeypatch.setattr(parquet_file, "UNIT_BYTES", 1)
    (shard,) = open_shards(path)
    pool = Pool(10**9)
    for _ in range(3):
        with pytest.raises(DataError, match="row 29"):
            read(shard, range(30), None, pool)
    assert pool.stats.loads == 4  # the footer, three row groups
    assert read(shard, range(29), None, pool) == {"text": ["good"] * 29}


def test_files_stay_open_only_as_long_as_not_too_many_are(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_file, "_slots", deque(range(2)))
    pool = Pool(10**9)
    shards = []
    for name in "abcd":
        (tmp_path / name).mkdir()
        shards.append(pieces_of(tmp_path / name, monkeypatch))
        assert firsts(shards[-1], [1, 0], pool) == [1, 0]
        assert len(open_files(tmp_path)) == min(2, len(shards))
    assert [is_held(shard, [99], pool) for shard in shards] == [False, False, True, True]
    assert firsts(shards[0], range(100), pool) == list(range(100))
    assert len(open_files(tmp_path)) == 1  # there is room for another
    assert firsts(shards[2], range(100), pool) == list(range(100))
    assert firsts(shards[2], [0], pool) == [0]
    assert len(open_files(tmp_path)) == 2
    pool = None
    assert open_files(tmp_path) == []
    assert len(parquet_file._slots) == 2


def test_a_piece_that_fails_blames_the_rows_from_there_on(tmp_path, monkeypatch):
    """However it comes to be decoded: one piece after another, or all at once."""
    path = tmp_path / "a.parquet"
    table = {"s": [os.urandom(1000) for _ in range(100)]}
    write(path, table, compression="snappy", use_dictionary=False, data_page_size=1000)
    whole = bytearray(path.read_bytes())
    chunk = pq.read_metadata(path).row_group(0).column(0)
    at = chunk.data_page_offset + chunk.total_compressed_size * 3 // 4
    whole[at : at + 5000] = b"\xff" * 5000
    path.write_bytes(whole)
    monkeypatch.setattr(parquet_file, "PIECE_BYTES", 10_000)
    (shard,) = open_shards(str(path))
    outcomes = []
    for rows in (range(100), reversed(range(100))):
        pool, good, blamed = Pool(10**9), [], []
        for row in rows:
            try:
                assert read(shard, [row], None, pool)["s"] == [table["s"][row]]
                good.append(row)
            except DataError as error:
                blamed.append(error)
        assert all(error.row == 0 and "row groups 0 to 0 cannot be decoded" in str(error) for error in blamed)
        outcomes.append(sorted(good))
    assert outcomes[0] == outcomes[1]
    assert 50 <= len(outcomes[0]) <= 75


def test_a_file_that_vanishes_between_two_pieces(tmp_path, monkeypatch):
    shard = pieces_of(tmp_path, monkeypatch)
    pool = Pool(10**9)
    firsts(shard, [0], pool)
    os.unlink(shard.file.path)
    assert firsts(shard, [5], pool) == [5]
    with pytest.raises(DataError, match=r"a\.parquet does not exist"):
        firsts(shard, [50], pool)
    assert firsts(shard, [6], pool) == [6]


def test_threads_read_one_unit_at_once(tmp_path, monkeypatch):
    shard = pieces_of(tmp_path, monkeypatch, rows=500, pieces=50)
    for memory in (0, 30_000, 10**9):
        pool, wrong = Pool(memory), []

        def work(seed, pool=pool, wrong=wrong):
            rng = np.random.default_rng(seed)
            for _ in range(40):
                start = int(rng.integers(490))
                rows = range(start, start + 10) if seed % 2 else rng.permutation(500)[:10].tolist()
                if firsts(shard, rows, pool) != list(rows):
                    wrong.append(rows)

        in_threads(work, 6)
        assert not wrong


@settings(deadline=None, max_examples=60)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=60),
    row_group=st.integers(1, 20),
    unit=st.sampled_from([1, 200, 10**6]),
    chunk=st.sampled_from([1, 300, 10**6]),
    shard_bytes=st.sampled_from([1, 500, 10**6]),
    null=st.integers(2, 9),
    data=st.data(),
)
def test_any_rows_in_any_order(tmp_path_factory, lengths, row_group, unit, chunk, shard_bytes, null, data):
    table = {
        "text": ["é" * length if i % null else None for i, length in enumerate(lengths)],
        "ids": pa.array([list(range(length)) for length in lengths], pa.list_(pa.int32())),
        "some": pa.array([[i] * length if i % null else None for i, length in enumerate(lengths)]),
        "i": list(range(len(lengths))),
    }
    path = write(tmp_path_factory.mktemp("p") / "a.parquet", table, row_group_size=row_group)
    expected = pq.read_table(path).to_pylist()
    with (
        mock.patch.object(parquet, "SHARD_BYTES", shard_bytes),
        mock.patch.object(parquet_file, "UNIT_BYTES", unit),
        mock.patch.object(parquet_file, "PIECE_BYTES", chunk),
    ):
        first, pool = 0, Pool(data.draw(st.sampled_from([0, 2000, 10**9])))
        for shard in open_shards(path):
            for _ in range(3):
                rows = data.draw(st.lists(st.integers(0, shard.num_samples - 1), min_size=1, max_size=30))
                got = read(shard, rows, None, pool)
                for name, column in got.items():
                    assert plain(column) == [expected[first + row][name] for row in rows]
                sizes = ParquetFormat().row_bytes(shard, np.array(rows), {"x": "text", "y": "ids"}, Store(), pool)
                wanted = [expected[first + row] for row in rows]
                assert sizes.tolist() == [len((row["text"] or "").encode()) + 4 * len(row["ids"]) for row in wanted]
            first += shard.num_samples
        assert first == len(lengths)


def test_row_bytes_sees_one_large_document(tmp_path):
    (shard,) = open_shards(write(tmp_path / "a.parquet", {"text": ["x"] * 50 + ["y" * 10**6] + ["z"] * 50}))
    sizes = ParquetFormat().row_bytes(shard, np.array([49, 50, 51]), None, Store(), Pool(10**9))
    assert sizes.dtype == np.int64
    assert sizes.tolist() == [1, 10**6, 1]


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd", "lz4", "brotli"])
def test_compressions(tmp_path, compression):
    path = write(tmp_path / "a.parquet", {"s": ["hello"] * 1000}, compression=compression)
    assert read(open_shards(path)[0], [999])["s"] == ["hello"]


def test_shards_may_have_other_columns_as_long_as_the_wanted_are_there(tmp_path):
    one = open_shards(write(tmp_path / "1.parquet", {"text": ["a"], "x": [1]}))[0]
    two = open_shards(write(tmp_path / "2.parquet", {"y": ["b"], "text": pa.array(["c"], pa.large_string())}))[0]
    pool = Pool(10**9)
    assert read(one, [0], ["text"], pool) == {"text": ["a"]}
    assert read(two, [0], ["text"], pool) == {"text": ["c"]}


@pytest.mark.parametrize("contents", [b"", b"PAR1", b'{"text": "json"}\n' * 50, b"PAR1" + b"\0" * 100 + b"PAR1"])
def test_what_is_not_parquet_is_refused(tmp_path, contents):
    path = tmp_path / "a.parquet"
    path.write_bytes(contents)
    with pytest.raises(DataError, match=r"a\.parquet is not a Parquet file, or it is broken or cut off"):
        open_shards(str(path))


@pytest.mark.parametrize("keep", [0.3, 0.9, 0.999])
def test_a_truncated_file_is_refused(tmp_path, keep):
    path = write(tmp_path / "a.parquet", {"s": [os.urandom(100) for _ in range(100)]})
    os.truncate(path, int(os.path.getsize(path) * keep))
    with pytest.raises(DataError, match=r"a\.parquet is not a Parquet file, or it is broken or cut off"):
        open_shards(path)


def test_a_file_that_has_changed_since_is_refused(tmp_path):
    path = write(tmp_path / "a.parquet", {"i": [1, 2, 3]})
    (shard,) = open_shards(path)
    write(path, {"i": [4, 5, 6, 7, 8, 9] * 100})
    with pytest.raises(DataError, match=r"a\.parquet has changed since it was indexed") as error:
        read(shard, [0])
    assert error.value.row is None


def test_a_file_that_is_truncated_or_vanishes_in_mid_run(tmp_path, small_units, monkeypatch):
    monkeypatch.setattr(parquet_file, "PIECE_BYTES", 10**6)
    path = write(tmp_path / "a.parquet", {"s": [os.urandom(100) for _ in range(100)]}, row_group_size=10)
    shards, pool = open_shards(path), Pool(10**9)
    read(shards[0], [0], None, pool)
    os.truncate(path, 5000)
    with pytest.raises(DataError, match=r"a\.parquet has changed since it was indexed"):
        read(shards[-1], [0], None, pool)
    os.unlink(path)
    with pytest.raises(DataError, match=r"a\.parquet does not exist"):
        read(shards[-1], [0], None, pool)
    assert len(read(shards[0], [0], None, pool)["s"]) == 1  # what is in the pool is good


@pytest.mark.parametrize("compression", ["snappy", "zstd", "gzip"])
def test_broken_pages_blame_the_rows_of_their_row_groups(tmp_path, compression, small_units):
    path = tmp_path / "a.parquet"
    write(path, {"s": [os.urandom(100) for _ in range(40)]}, row_group_size=10, compression=compression)
    whole = bytearray(path.read_bytes())
    column = pq.read_metadata(path).row_group(2).column(0)
    start = column.dictionary_page_offset or column.data_page_offset
    whole[start : start + column.total_compressed_size] = os.urandom(column.total_compressed_size)
    path.write_bytes(whole)
    with mock.patch.object(parquet, "SHARD_BYTES", 10**9):
        (shard,) = open_shards(str(path))
    pool = Pool(10**9)
    with pytest.raises(DataError, match=r"a\.parquet: row groups 2 to 2 cannot be decoded") as error:
        read(shard, [5, 3, 25, 7, 29], None, pool)
    assert error.value.row == 2
    loads = pool.stats.loads
    with pytest.raises(DataError) as error:
        read(shard, [5, 3, 7, 29], None, pool)
    assert error.value.row == 3
    assert pool.stats.loads == loads  # it was not decoded again
    assert len(read(shard, [5, 3, 7, 39], None, pool)["s"]) == 4


def test_text_that_is_not_utf8_blames_its_row(tmp_path, small_units):
    values = [b"good"] * 95 + [b"bad \xff"] + [b"good"] * 4
    text = pa.array(values).cast(pa.binary()).view(pa.string())
    path = write(tmp_path / "a.parquet", {"text": text}, row_group_size=10)
    with mock.patch.object(parquet, "SHARD_BYTES", 10**9):
        (shard,) = open_shards(path)
    with pytest.raises(DataError, match=r"a\.parquet part \[0, 10\], row 95, column 'text': 'utf-8' codec") as error:
        read(shard, [1, 99, 95, 94, 50])
    assert error.value.row == 2
    with pytest.raises(DataError, match="row 95") as error:
        read(shard, range(92, 97))
    assert error.value.row == 3
    assert read(shard, [94, 96]) == {"text": ["good", "good"]}


def test_many_columns_and_row_groups_of_one_row(tmp_path):
    table = {f"c{i}": list(range(i, i + 50)) for i in range(40)}
    (shard,) = open_shards(write(tmp_path / "a.parquet", table, row_group_size=1))
    got = read(shard, [49, 0])
    assert all(got[f"c{i}"] == [i + 49, i] for i in range(40))


def test_remote_files():
    fs = fsspec.filesystem("memory")
    with fs.open("/parquet-test/a.parquet", "wb") as file:
        pq.write_table(pa.table({"text": [f"row {i}" for i in range(100)]}), file, row_group_size=7)
    try:
        (shard,) = open_shards("memory://parquet-test/a.parquet")
        assert read(shard, [99, 3], ["text"]) == {"text": ["row 99", "row 3"]}
        with fs.open("/parquet-test/a.parquet", "wb") as file:
            file.write(b"other")
        with pytest.raises(DataError, match=r"a\.parquet has changed since it was indexed"):
            read(shard, [0])
    finally:
        fs.rm("/parquet-test", recursive=True)


def test_http_servers_without_ranges_give_a_copy(tmp_path):
    write(tmp_path / "a.parquet", {"text": [os.urandom(2000).hex() for _ in range(100)]}, row_group_size=10)
    expected = pq.read_table(tmp_path / "a.parquet").to_pylist()
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))  # it knows no ranges
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        store = Store(cache_dir=tmp_path / "cache")
        try:
            (shard,) = open_shards(f"http://127.0.0.1:{server.server_port}/a.parquet", store)
            assert read(shard, [99, 3], None, None, store)["text"] == [expected[99]["text"], expected[3]["text"]]
        finally:
            server.shutdown()
    assert len(list((tmp_path / "cache").iterdir())) == 1


class Flaky(Store):
    """Fails the first few reads."""

    def __init__(self, failures):
        super().__init__()
        self.failures = failures

    def open(self, file):
        if self.failures:
            self.failures -= 1
            raise ConnectionResetError("connection reset by peer")
        return super().open(file)


@pytest.fixture
def remote_file(monkeypatch):
    monkeypatch.setattr(parquet_file.time, "sleep", lambda seconds: None)
    fs = fsspec.filesystem("memory")
    with fs.open("/parquet-flaky/a.parquet", "wb") as file:
        pq.write_table(pa.table({"i": [1, 2, 3]}), file)
    yield "memory://parquet-flaky/a.parquet"
    fs.rm("/parquet-flaky", recursive=True)


def test_a_network_that_fails_for_a_moment_is_tried_again(remote_file):
    (shard,) = open_shards(remote_file, Flaky(2))
    pool = Pool(10**9)
    assert read(shard, [0], None, pool, Flaky(1)) == {"i": [1]}


def test_a_network_that_keeps_failing_is_not_taken_for_bad_data(remote_file):
    with pytest.raises(DataError, match=r"memory://parquet-flaky/a.parquet cannot be read: connection reset"):
        open_shards(remote_file, Flaky(9))
    (shard,) = open_shards(remote_file)
    pool, store = Pool(10**9), Store()
    ParquetFormat().row_bytes(shard, np.array([0]), {"other": "i"}, store, pool)  # the footer
    with pytest.raises(DataError, match="cannot be read: connection reset") as error:
        read(shard, [0], None, pool, Flaky(9))
    assert error.value.row is None
    assert read(shard, [0], None, pool, store) == {"i": [1]}
