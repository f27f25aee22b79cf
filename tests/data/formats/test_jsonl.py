import gzip
import io
import json
import os
import pickle

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from support.threads import in_threads

from torchzephon.data.block import MISSING, Block
from torchzephon.data.formats.jsonl import JsonlFormat
from torchzephon.data.pool import Pool
from torchzephon.data.storage.listing import list_files
from torchzephon.data.storage.store import Store
from torchzephon.errors import DataError

_JSONL = JsonlFormat()
_COMPRESS = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.compress}


def _shards(path, store=None):
    store = store or Store()
    return [shard for file in list_files(str(path), store) for shard in _JSONL.index(file, store)]


def _read(path, pool, rows=None, columns=None, store=None):
    store = store or Store()
    (shard,) = _shards(path, store)
    rows = np.arange(shard.num_samples) if rows is None else np.asarray(rows, np.int64)
    return list(Block(_JSONL.read(shard, rows, columns, store, pool), size=len(rows)))


def _write(path, *lines, end="\n"):
    path.write_bytes("".join(line + end for line in lines).encode())
    return path


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
_SAMPLES = st.dictionaries(st.sampled_from(["text", "id", "ü", ""]), _VALUES, min_size=1)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(_SAMPLES, st.booleans(), st.sampled_from(["\n", "\r\n", "\n\n", "\n \t\r\n", "  \n"]))),
    st.sampled_from(["", "\ufeff", "\n", "\ufeff\r\n"]),
    st.booleans(),
    st.sampled_from(["", ".gz", ".zst"]),
    st.randoms(),
)
def test_reading_equals_reading_line_by_line(tmp_path_factory, parts, begin, cut, codec, rng):
    text = begin + "".join(json.dumps(sample, ensure_ascii=plain) + end for sample, plain, end in parts)
    if cut:
        text = text.rstrip("\r\n")
    path = tmp_path_factory.mktemp("jsonl") / ("a.jsonl" + codec)
    path.write_bytes(_COMPRESS[codec](text.encode()))
    lines = text.removeprefix("\ufeff").split("\n")
    expected = [json.loads(line) for line in lines if line.strip(" \t\r")]
    pool = Pool(1_000_000)
    assert _read(path, pool) == expected
    rows = rng.choices(range(len(expected)), k=10) if expected else []
    assert _read(path, pool, rows) == [expected[row] for row in rows]


@pytest.mark.parametrize("gap", [10, 100_000])
def test_scattered_rows(tmp_path, pool, gap):
    samples = [{"id": i, "text": "x" * gap} for i in range(50)]
    path = _write(tmp_path / "a.jsonl", *map(json.dumps, samples))
    rows = np.random.default_rng(0).integers(0, 50, 200).tolist()
    assert _read(path, pool, rows) == [samples[row] for row in rows]
    assert _read(path, pool, [49, 0]) == [samples[49], samples[0]]
    assert _read(path, pool, []) == []


def test_row_bytes_are_the_lengths_of_lines(tmp_path, pool):
    path = _write(tmp_path / "a.jsonl", "{}", '{"a": 1}', "{}")
    (shard,) = _shards(path)
    assert _JSONL.row_bytes(shard, np.array([1, 0, 1]), None, Store(), pool).tolist() == [9, 3, 9]
    assert (shard.num_samples, shard.num_bytes) == (3, 15)


def test_columns_are_selected_and_renamed(tmp_path, pool):
    path = _write(tmp_path / "a.jsonl", '{"a": 1, "b": 2}', '{"b": null}', '{"c": 3}')
    assert _read(path, pool) == [{"a": 1, "b": 2}, {"b": None}, {"c": 3}]
    assert _read(path, pool, columns={"x": "a"}) == [{"x": 1}, {}, {}]
    assert _read(path, pool, columns={"x": "b", "b": "a"}) == [{"x": 2, "b": 1}, {"x": None}, {}]
    (shard,) = _shards(path)
    columns = _JSONL.read(shard, np.arange(3), {"x": "a"}, Store(), pool)
    assert columns["x"] == [1, MISSING, MISSING]
    assert columns["x"][1] is MISSING


def test_fields_in_another_order_are_the_same_fields(tmp_path, pool):
    path = _write(tmp_path / "a.jsonl", '{"a": 1, "b": 2}', '{"b": 3, "a": 4}')
    assert _read(path, pool) == [{"a": 1, "b": 2}, {"a": 4, "b": 3}]


def test_of_duplicate_keys_the_last_wins_and_large_integers_become_floats(tmp_path, pool):
    path = _write(tmp_path / "a.jsonl", '{"a": 1, "a": 2}', '{"a": 18446744073709551616}')
    assert _read(path, pool) == [{"a": 2}, {"a": 2.0**64}]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"not json", "not JSON in UTF-8"),
        (b'{"a": 1', "not JSON in UTF-8"),
        (b'{"a": 1} {"b": 2}', "not JSON in UTF-8"),
        (b'{"a": NaN}', "not JSON in UTF-8"),
        (b'{"a": Infinity}', "not JSON in UTF-8"),
        (b"{'a': 1}", "not JSON in UTF-8"),
        (b'{"a": "\\ud800"}', "not JSON in UTF-8"),
        (b'{"a": "\xff"}', "not JSON in UTF-8"),
        (b'{"a": "\xed\xa0\x80"}', "not JSON in UTF-8"),
        (b'{"a": "\x01"}', "not JSON in UTF-8"),
        (b"\x00\x00\x00", "not JSON in UTF-8"),
        (b'{"a":' * 2000 + b"1" + b"}" * 2000, "not JSON in UTF-8"),
        (b"[1, 2]", "not a JSON object"),
        (b'"text"', "not a JSON object"),
        (b"null", "not a JSON object"),
        (b"17", "not a JSON object"),
    ],
)
@pytest.mark.parametrize("codec", ["", ".gz"])
def test_a_bad_line_is_named(tmp_path, pool, line, reason, codec):
    path = tmp_path / ("a.jsonl" + codec)
    path.write_bytes(_COMPRESS[codec](b'{"a": 1}\n\n' + line + b'\n{"a": 3}\n'))
    (shard,) = _shards(path)
    assert shard.num_samples == 3
    for rows, at in (([0, 1, 2], 1), ([2, 1, 0], 1), ([2, 0, 1], 2), ([1], 0), ([0, 1, 1], 1)):
        with pytest.raises(DataError) as caught:
            _JSONL.read(shard, np.array(rows), None, Store(), pool)
        assert caught.value.row == at
        assert str(caught.value).startswith(f"{path}, line 3: {reason}")
        assert 'let Reader(on_error="skip") pass over such lines' in str(caught.value)
        assert len(str(caught.value)) < len(str(path)) + 400
    assert pickle.loads(pickle.dumps(caught.value)).row == 1
    assert _read(path, pool, [2, 0]) == [{"a": 3}, {"a": 1}]


@pytest.mark.parametrize("lines", [["[", '{"a": 1},', '{"a": 2}', "]"], ['[{"a": 1}, {"a": 2}]']])
def test_a_json_array_is_recognized(tmp_path, pool, lines):
    path = _write(tmp_path / "a.json", *lines)
    with pytest.raises(
        DataError, match=r"line 1: not .*; the file begins like one JSON array: write its objects one a "
    ):
        _read(path, pool)


def test_columns_reach_into_objects(tmp_path, pool):
    samples = [
        {"doc": {"body": "x", "meta": {"lang": "en"}}, "a.b": 1},
        {"doc": {"body": None}, "a": {"b": 2}},
        {"doc": "text"},
    ]
    path = _write(tmp_path / "a.jsonl", *map(json.dumps, samples))
    columns = {"text": "doc.body", "lang": "doc.meta.lang", "n": "a.b"}
    assert _read(path, pool, columns=columns) == [{"text": "x", "lang": "en", "n": 1}, {"text": None, "n": 2}, {}]


def test_the_message_shows_what_is_there(tmp_path, pool):
    path = _write(tmp_path / "a.jsonl", "{}", "hello " + "x" * 500)
    with pytest.raises(DataError, match=r"line 2: not JSON in UTF-8 \(.*, column 1\): 'hello x{54}\.\.\.';"):
        _read(path, pool)


@pytest.mark.parametrize(
    "name", ["a.jsonl", "a.ndjson", "a.json", "a.JSONL", "a.jsonl.gz", "a.json.zst", "a.NDJSON.GZ"]
)
def test_file_names(tmp_path, pool, name):
    codec = next((codec for codec in (".gz", ".zst") if name.lower().endswith(codec)), "")
    (tmp_path / name).write_bytes(_COMPRESS[codec](b'{"a": 1}\n'))
    assert name.lower().endswith(_JSONL.suffixes)
    assert _read(tmp_path / name, pool) == [{"a": 1}]


def test_an_empty_file_has_no_samples(tmp_path):
    (tmp_path / "a.jsonl").touch()
    (shard,) = _shards(tmp_path)
    assert shard.num_samples == 0


@pytest.mark.parametrize("codec", [".gz", ".zst"])
def test_compressed_members_one_after_another(tmp_path, pool, codec):
    path = tmp_path / ("a.jsonl" + codec)
    path.write_bytes(_COMPRESS[codec](b'{"a": 1}\n{"a"') + _COMPRESS[codec](b": 2}\n") + _COMPRESS[codec](b""))
    assert _read(path, pool) == [{"a": 1}, {"a": 2}]


def _broken_files():
    text = b'{"text": "%s"}\n' % os.urandom(20_000).hex().encode()
    for codec, compress in (("gz", gzip.compress), ("zst", zstandard.compress)):
        data = compress(text * 20)
        for name, broken in {
            "cut": data[: len(data) // 2],
            "without its end": data[:-2],
            "empty": b"",
            "plain text": text,
            "with rubbish after it": data + b"rubbish",
        }.items():
            yield pytest.param(codec, broken, id=f"{codec} {name}")


@pytest.mark.parametrize(("codec", "data"), list(_broken_files()))
def test_broken_compressed_files_are_named(tmp_path, codec, data):
    path = tmp_path / f"a.jsonl.{codec}"
    path.write_bytes(data)
    with pytest.raises(DataError, match=rf"a\.jsonl\.{codec} is broken .* data \(.*\): .* copy it again"):
        _shards(path)
    assert os.listdir(tmp_path) == [path.name]


def test_a_compressed_file_is_decompressed_once(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"a": 1}\n' * 1000))
    shards = tmp_path / "shards"
    for _ in range(2):
        assert len(_read(path, Pool(1_000_000), store=Store(cache_dir=shards))) == 1000
        (copy,) = os.scandir(shards)
        assert copy.stat().st_size == 9000
        inode = copy.inode()
    assert [entry.inode() for entry in os.scandir(shards)] == [inode]
    path.write_bytes(gzip.compress(b'{"a": 2}\n'))
    assert _read(path, Pool(1_000_000), store=Store(cache_dir=shards)) == [{"a": 2}]


def test_a_copy_larger_than_the_cache_is_refused(tmp_path, pool):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"a": 1}\n' * 1000))
    with pytest.raises(DataError, match=r"9\.0 kB, more than the shard cache may hold \(1\.0 kB\): raise cache_size"):
        _read(path, pool, store=Store(cache_dir=tmp_path / "shards", cache_size="1KB"))


@pytest.mark.parametrize("pool_state", ["open", "not yet open"])
def test_a_file_that_changes_in_mid_run_is_named(tmp_path, pool, pool_state):
    path = _write(tmp_path / "a.jsonl", *['{"a": 1}'] * 1000)
    (shard,) = _shards(path)
    if pool_state == "open":
        _JSONL.read(shard, np.arange(10), None, Store(), pool)
    os.truncate(path, 500)
    with pytest.raises(
        DataError, match=r"a\.jsonl has changed since it was indexed \(from 9000 to 500 bytes\)"
    ) as caught:
        _JSONL.read(shard, np.arange(990, 1000), None, Store(), pool)
    assert caught.value.row is None


def test_a_file_that_is_cut_off_between_the_look_and_the_read(tmp_path, pool, monkeypatch):
    """A mapping would end the process with SIGBUS here."""
    path = _write(tmp_path / "a.jsonl", *['{"a": 1}'] * 1000)
    (shard,) = _shards(path)
    _JSONL.read(shard, np.arange(10), None, Store(), pool)
    status = os.stat(path)
    monkeypatch.setattr(os, "fstat", lambda descriptor: status)
    os.truncate(path, 5000)
    with pytest.raises(DataError, match="from 9000 to 5000 bytes"):
        _JSONL.read(shard, np.arange(1000), None, Store(), pool)


def test_a_file_that_vanishes_in_mid_run_is_named(tmp_path, pool):
    path = _write(tmp_path / "a.jsonl", '{"a": 1}')
    (shard,) = _shards(path)
    os.unlink(path)
    with pytest.raises(DataError, match=r"a\.jsonl does not exist any more"):
        _JSONL.read(shard, np.arange(1), None, Store(), pool)


def test_a_failing_disk_is_named(tmp_path, pool, monkeypatch):
    path = _write(tmp_path / "a.jsonl", '{"a": 1}')
    (shard,) = _shards(path)
    _JSONL.read(shard, np.arange(1), None, Store(), pool)

    def broken(*args):
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(os, "pread", broken)
    with pytest.raises(DataError, match=r"a\.jsonl cannot be read: .*Stale file handle"):
        _JSONL.read(shard, np.arange(1), None, Store(), pool)


def test_an_index_that_is_lost_in_mid_run_is_made_anew(tmp_path, pool):
    path = _write(tmp_path / "a.jsonl", '{"a": 1}', '{"a": 2}')
    (shard,) = _shards(path)
    os.unlink(f"{path}.tzindex")
    assert list(Block(_JSONL.read(shard, np.array([1]), None, Store(), pool))) == [{"a": 2}]
    assert os.path.exists(f"{path}.tzindex")


def test_open_files_are_bounded(tmp_path):
    """However much memory a pool may take, it keeps no more than some hundreds of descriptors."""
    for number in range(600):
        _write(tmp_path / f"{number}.jsonl", '{"a": 1}')
    store, pool = Store(), Pool(10**12)
    before = len(os.listdir("/proc/self/fd"))
    for shard in _shards(tmp_path):
        _JSONL.read(shard, np.arange(1), None, store, pool)
    assert len(os.listdir("/proc/self/fd")) - before <= 520


def test_threads_share_an_open_file(tmp_path, pool):
    samples = [{"id": i, "text": "x" * (i % 77)} for i in range(2000)]
    path = _write(tmp_path / "a.jsonl", *map(json.dumps, samples))
    (shard,) = _shards(path)
    wrong = []

    def read(seed):
        rng = np.random.default_rng(seed)
        for _ in range(50):
            rows = rng.integers(0, 2000, 100)
            got = list(Block(_JSONL.read(shard, rows, None, Store(), pool)))
            if got != [samples[row] for row in rows]:
                wrong.append(rows)

    in_threads(read, 4)
    assert not wrong


@pytest.mark.parametrize("codec", ["", ".gz", ".zst"])
def test_remote_files(memory, pool, tmp_path, codec):
    data = io.BytesIO()
    data.write(b"".join(b'{"id": %d}\r\n' % i for i in range(1000)))
    memory.pipe_file(f"/b/a.jsonl{codec}", _COMPRESS[codec](data.getvalue()))
    store = Store(cache_dir=tmp_path)
    assert _read("memory://b", pool, [999, 0, 5], store=store) == [{"id": 999}, {"id": 0}, {"id": 5}]


def test_files_on_a_web_server(web, pool, tmp_path):
    (web.root / "a.jsonl").write_bytes(b"".join(b'{"id": %d}\n' % i for i in range(1000)))
    (web.root / "b.jsonl.gz").write_bytes(gzip.compress(b'{"id": -1}\n'))
    store = Store(cache_dir=tmp_path / "shards")
    assert _read(f"{web.url}/a.jsonl", pool, [999, 0], store=store) == [{"id": 999}, {"id": 0}]
    assert _read(f"{web.url}/b.jsonl.gz", pool, store=store) == [{"id": -1}]
