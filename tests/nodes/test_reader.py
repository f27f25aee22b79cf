import copy
import gzip
import json
import logging
import os
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torchdata.nodes import IterableWrapper, Mapper, Prefetcher, Unbatcher

import torchzephon as tz
from torchzephon.data.block import MISSING
from torchzephon.nodes.graph import Estimate

LONG = 10_000


def plain(sample):
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in sample.items()}


def make_jsonl(directory, sizes, name="j"):
    os.makedirs(directory)
    for shard, size in enumerate(sizes):
        with open(f"{directory}/{shard}.jsonl", "w") as file:
            for row in range(size):
                file.write(json.dumps({"text": f"{name} {shard} {row}", "row": row}) + "\n")
    return tz.Dataset(name, str(directory))


def make_parquet(directory, sizes, name="p"):
    os.makedirs(directory)
    for shard, size in enumerate(sizes):
        table = {
            "text": [f"{name} {shard} {row}" for row in range(size)],
            "ids": pa.array([[shard, row] * (row % 5) for row in range(size)], pa.list_(pa.int32())),
        }
        pq.write_table(pa.table(table), f"{directory}/{shard}.parquet", row_group_size=7)
    return tz.Dataset(name, str(directory))


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    root = tmp_path_factory.mktemp("datasets")
    samples = [{"text": f"m {i}"} for i in range(11)]
    return [
        make_jsonl(root / "j", [20, 1, 13]),
        make_parquet(root / "p", [30, 8]),
        tz.Dataset.from_samples("m", samples),
    ]


def reader(datasets, lane=0, num_lanes=1, options=None, **source):
    source = {"seed": 5, "exhausted_policy": "stop", **source}
    node = tz.Reader(tz.MixtureWorkSource(datasets, **source), **(options or {}))
    node.source.bind_lane(lane, num_lanes)
    node.reset()
    return node


def samples_of(node):
    return [plain(sample) for block in node for sample in block]


def key(sample):
    return sample["text"]


# --- what is read ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [{}, {"shuffle_within_shard": True}, {"shuffle_block_size": "global"}])
@pytest.mark.parametrize("num_lanes", [1, 3])
def test_every_sample_of_every_dataset_once(datasets, source, num_lanes):
    for each in (*([dataset] for dataset in datasets), datasets):
        sources = {**source, "exhausted_policy": None, "stop_after_passes": 1}
        texts = []
        for lane in range(num_lanes):
            texts += [key(sample) for sample in samples_of(reader(each, lane, num_lanes, **sources))]
        expected = {key(plain(sample)) for dataset in each for sample in whole(dataset)}
        assert set(texts) == expected
        assert len(texts) == len(expected) or len(each) > 1


def whole(dataset):
    for shard in range(len(dataset.shards)):
        size = dataset.shards[shard].num_samples
        columns = dataset.read(shard, np.arange(size), dataset.store, tz.Reader(tz.MixtureWorkSource([dataset]))._pool)
        yield from tz.Block(columns)


def test_samples_match_their_pointers(datasets):
    files = {dataset.name: dataset for dataset in datasets}
    for block in reader(datasets, shuffle_within_shard=True):
        assert block.datasets == tuple(datasets)
        assert len(block) == len(block.work)
        for index, sample in enumerate(block):
            name, *numbers = sample["text"].split()
            pointed = int(block.work.dataset[index]), int(block.work.shard[index]), int(block.work.row[index])
            assert datasets[pointed[0]] is files[name]
            assert numbers == ([str(pointed[2])] if name == "m" else [str(pointed[1]), str(pointed[2])])


def test_columns_of_one_dataset_alone_are_missing_in_the_others(datasets):
    (block,) = reader(datasets, exhausted_policy=None, block_size=1000, stop_after_passes=1)
    assert set(block.columns) == {"text", "row", "ids"}
    for sample, ids in zip(block, block.columns["ids"], strict=True):
        assert set(sample) == {"j": {"text", "row"}, "p": {"text", "ids"}, "m": {"text"}}[sample["text"][0]]
        assert (ids is MISSING) == (sample["text"][0] != "p")


def test_lists_of_numbers_stay_ragged_across_shards_and_datasets(tmp_path):
    datasets = [make_parquet(tmp_path / name, [9, 12], name) for name in "ab"]
    count = 0
    for block in reader(datasets, shuffle_within_shard=True, shuffle_block_size="global"):
        assert isinstance(block.columns["ids"], tz.Ragged)
        for sample in block:
            _, shard, row = sample["text"].split()
            assert sample["ids"].tolist() == [int(shard), int(row)] * (int(row) % 5)
            count += 1
    assert count > 30


def test_number_types_that_differ_keep_their_own(tmp_path):
    for name, kind in (("a", pa.uint16()), ("b", pa.int64())):
        table = pa.table({"ids": pa.array([[1, 2]] * 10, pa.list_(kind)), "name": [name] * 10})
        pq.write_table(table, tmp_path / f"{name}.parquet")
    datasets = [tz.Dataset(name, str(tmp_path / f"{name}.parquet")) for name in "ab"]
    for sample in Unbatcher(reader(datasets)):
        assert sample["ids"].dtype == {"a": np.uint16, "b": np.int64}[sample["name"]]


@pytest.mark.parametrize("size", [5, 40])  # a block within a row group, and of several
@pytest.mark.parametrize("null", [False, True])
@pytest.mark.parametrize("kind", [pa.int32(), pa.bool_()])
def test_lists_of_numbers_are_the_readers_own(tmp_path, size, null, kind):
    """They hold no row group in memory, and whoever changes them changes nothing for others."""
    ids = [[row % 2 == 0 if pa.types.is_boolean(kind) else row] * 1000 for row in range(80)]
    table = pa.table({"ids": pa.array([*ids[:70], None, *ids[71:]] if null else ids, pa.list_(kind))})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=20)
    dataset = tz.Dataset("p", str(tmp_path))
    nodes = [reader([dataset], block_size=size, exhausted_policy="stop", shuffle_within_shard=False) for _ in range(2)]
    for one, two in zip(*nodes, strict=True):
        column, other = one.columns["ids"], two.columns["ids"]
        expected = [None if row is None else row.tolist() for row in other]
        for row in column:
            if row is not None:
                base = row if row.base is None else row.base
                assert base.flags.owndata
                assert base.nbytes <= row.nbytes * size
                row[:] = ~row
        assert [None if row is None else row.tolist() for row in other] == expected


def test_text_in_one_dataset_and_numbers_in_another(tmp_path):
    pq.write_table(pa.table({"x": pa.array([[1, 2]] * 10, pa.list_(pa.int32()))}), tmp_path / "a.parquet")
    datasets = [tz.Dataset("a", str(tmp_path / "a.parquet")), tz.Dataset.from_samples("b", [{"x": "text"}] * 10)]
    values = [sample["x"] for block in reader(datasets) for sample in block]
    assert sorted({str(value) for value in values}) == ["[1 2]", "text"]


def test_samples_without_fields():
    (block,) = reader([tz.Dataset.from_samples("empty", [{}] * 5)])
    assert len(block) == 5
    assert block[0] == {}


# --- blocks and states ----------------------------------------------------------------------------------------------


def expected_order(datasets, **source):
    return samples_of(reader(datasets, block_size=1, **source))


@settings(deadline=None, max_examples=30)
@given(data=st.data(), shuffled=st.booleans())
def test_resume_anywhere_with_another_block_size(datasets, data, shuffled):
    source = {"shuffle_within_shard": shuffled, "chunk_size": 10, "exhausted_policy": None, "stop_after_passes": 1}
    expected = expected_order(datasets, **source)
    state, got = None, []
    for _ in range(data.draw(st.integers(1, 5))):
        block_size = data.draw(st.sampled_from([1, 2, 7, 1000]))
        block_bytes = data.draw(st.sampled_from([1, 30, 200, 10**6]))
        node = reader(datasets, block_size=block_size, block_bytes=block_bytes, **source)
        node.reset(state)
        if data.draw(st.booleans()):
            node.reset(state)
        for _ in range(data.draw(st.integers(0, 30))):
            block = next(node, None)
            if block is None:
                break
            assert 1 <= len(block) <= block_size
            got += [plain(sample) for sample in block]
        state = json.loads(json.dumps(node.state_dict()))
        assert set(state) == {"source", "used"}
        assert got == expected[: len(got)]
    node = reader(datasets, **source)
    node.reset(state)
    got += samples_of(node)
    assert got == expected


def test_the_end_stays_the_end(datasets):
    node = reader(datasets[:1])
    list(node)
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(node)
    state = node.state_dict()
    again = reader(datasets[:1])
    again.reset(state)
    with pytest.raises(StopIteration):
        next(again)
    again.reset()
    assert len(samples_of(again)) == 34


def test_states_are_fresh_and_small(datasets):
    node = reader(datasets, block_bytes=20)
    next(node)
    first = node.state_dict()
    kept = copy.deepcopy(first)
    next(node)
    assert first == kept
    assert len(json.dumps(first)) < 80


def test_a_state_beyond_the_end_is_refused(datasets):
    node = reader(datasets[:1])
    node.reset({"source": {"cycle": 0, "position": 30}, "used": 5})
    with pytest.raises(tz.StateError, match="the source ended 1 samples before the place"):
        next(node)


@pytest.mark.parametrize("state", [{}, {"source": {"cycle": 0, "position": 0}}, {"used": 3}])
def test_a_foreign_state_is_refused(datasets, state):
    with pytest.raises(tz.StateError, match="Reader: the state lacks"):
        reader(datasets).reset(state)


def test_large_samples_make_small_blocks():
    samples = [{"text": "x" * (LONG if i % 10 == 0 else 10)} for i in range(100)]
    blocks = list(reader([tz.Dataset.from_samples("m", samples)], block_size=100, block_bytes=2 * LONG))
    sizes = [sum(len(text) for text in block.columns["text"]) for block in blocks]
    assert max(sizes) <= 2 * LONG
    assert len(blocks) == 10
    blocks = list(reader([tz.Dataset.from_samples("m", samples)], block_size=100, block_bytes=100))
    assert all(len(block) == 1 or sum(map(len, block.columns["text"])) <= 100 for block in blocks)
    assert sum(map(len, blocks)) == 100


def test_a_work_that_fits_is_read_in_one_go(datasets):
    assert [len(block) for block in reader(datasets[:1], block_size=16)] == [16, 16, 2]


# --- sharing --------------------------------------------------------------------------------------------------------


def test_lanes_share_one_pool_and_so_do_graphs_built_one_by_one(datasets):
    node = reader(datasets, options={"memory": "77MB"})
    lanes = [copy.deepcopy(node) for _ in range(3)]
    other = reader(datasets, options={"memory": 77_000_000})
    assert {id(each._pool) for each in (node, *lanes, other)} == {id(node._pool)}
    assert reader(datasets, options={"memory": "78MB"})._pool is not node._pool
    expected = samples_of(node)
    assert [samples_of(lane) for lane in lanes] == [expected] * 3


def test_a_pickled_reader_reads_on(datasets):
    node = reader(datasets, block_size=3)
    next(node)
    clone = pickle.loads(pickle.dumps(node))
    clone.reset(node.state_dict())
    assert samples_of(clone) == samples_of(node)


def test_the_pool_stays_within_its_bound(datasets):
    node = reader(datasets, options={"memory": 3000}, shuffle_within_shard=True)
    assert len(samples_of(node)) > 20
    assert node._pool.stats.bytes <= 3000


def test_a_working_set_that_does_not_fit_is_told_once(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("torchzephon.data.formats.parquet.SHARD_BYTES", 1)
    datasets = [make_parquet(tmp_path / "p", [700]), tz.Dataset.from_samples("m", [{"text": "x"}] * 10)]
    for memory, fits in ((20_001, False), (1_000_001, True)):
        lanes = [reader(datasets, lane, 4, {"memory": memory}) for lane in range(4)]
        with caplog.at_level(logging.WARNING, logger="torchzephon"):
            for lane in lanes:
                next(lane)
        messages = [record.getMessage() for record in caplog.records]
        assert len(messages) == (0 if fits else 1)
        caplog.clear()
        if not fits:
            assert messages[0].startswith("4 lanes read from ")
            assert "but Reader(memory=...) is 20.0 kB: row groups will be decoded again and again" in messages[0]


# --- stock nodes ----------------------------------------------------------------------------------------------------


def test_stock_nodes_above_and_below(datasets):
    expected = expected_order(datasets)
    source = tz.MixtureWorkSource(datasets, seed=5, exhausted_policy="stop")
    node = Unbatcher(tz.Reader(Prefetcher(source, prefetch_factor=2)))
    assert [plain(sample) for sample in node] == expected
    upper = Mapper(Unbatcher(reader(datasets)), lambda sample: sample["text"].upper())
    assert list(upper) == [sample["text"].upper() for sample in expected]


def test_a_leaf_that_is_not_lane_aware_is_refused():
    with pytest.raises(TypeError, match=r"begins with IterableWrapper, a leaf that is not lane-aware; .* WorkSource"):
        tz.Reader(Mapper(IterableWrapper([1, 2]), str))
    with pytest.raises(TypeError, match="source must be a node that yields Work, got list"):
        tz.Reader([1, 2])


def test_a_source_that_yields_something_else_is_refused(datasets):
    node = tz.Reader(Mapper(tz.MixtureWorkSource(datasets), len))
    node.reset()
    with pytest.raises(TypeError, match="the source must yield Work, got int"):
        next(node)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"memory": "lots"}, ValueError, "memory must be a number of bytes or a text such as"),
        ({"memory": -1}, ValueError, "memory must not be negative"),
        ({"memory": 1.5}, TypeError, "memory must be a number of bytes"),
        ({"cache_size": "big"}, ValueError, "cache_size must be"),
        ({"on_error": "ignore"}, ValueError, "on_error must be 'raise' or 'skip', got 'ignore'"),
    ],
)
def test_arguments_are_checked(datasets, options, error, message):
    with pytest.raises(error, match=message):
        tz.Reader(tz.MixtureWorkSource(datasets), **options)


def test_compressed_files_go_through_the_cache_directory(tmp_path):
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.write('{"text": "zipped"}\n' * 10)
    options = {"cache_dir": tmp_path / "cache", "cache_size": "1MB"}
    node = reader([tz.Dataset("z", str(tmp_path / "a.jsonl.gz"))], options=options)
    assert samples_of(node) == [{"text": "zipped"}] * 10
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_what_it_tells_about_itself(datasets):
    assert reader(datasets, options={"on_error": "skip", "memory": 5}).describe() == {}
    estimate = Estimate(3, 100, 5000, 0)
    assert reader(datasets).estimate(estimate) == estimate
    assert reader(datasets).estimate(None) is None


# --- bad data -------------------------------------------------------------------------------------------------------


@pytest.fixture
def partly_bad(tmp_path):
    """25 good rows, and five bad ones at 3, 4, 10, 20 and 29."""
    path = tmp_path / "bad.jsonl"
    bad = {3: "{", 4: "[1]", 10: "null", 20: '{"text": "\\ud800', 29: "x"}
    path.write_text("\n".join(bad.get(row, json.dumps({"text": f"row {row}"})) for row in range(30)))
    return tz.Dataset("partly", str(path)), bad


def test_bad_rows_raise_with_their_place_and_raise_again(partly_bad):
    dataset, _ = partly_bad
    node = reader([dataset], block_size=8, shuffle_shards=False)
    for _ in range(2):
        with pytest.raises(tz.DataError, match=r"dataset 'partly': .*bad.jsonl, line 4: not JSON"):
            next(node)
    assert node.state_dict() == {"source": {"cycle": 0, "position": 0}, "used": 0}


@pytest.mark.parametrize("block_size", [1, 2, 7, 30])
@pytest.mark.parametrize("block_bytes", [1, 40, 10**6])
def test_bad_rows_are_skipped_counted_and_logged(partly_bad, block_size, block_bytes, caplog):
    dataset, bad = partly_bad
    good = [f"row {row}" for row in range(30) if row not in bad]
    with caplog.at_level(logging.WARNING, logger="torchzephon"):
        node = reader([dataset], options={"on_error": "skip"}, block_size=block_size, block_bytes=block_bytes)
        assert [sample["text"] for sample in samples_of(node)] == good
    assert node.state_dict() == {"source": {"cycle": 0, "position": 30}, "used": 0, "skipped": 5}
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 3  # the first, the second and the fourth
    assert "skipped sample number 1 of lane 0 in cycle 0: dataset 'partly'" in messages[0]
    assert "bad.jsonl, line 4" in messages[0]


def test_skipping_resumes_exactly(partly_bad):
    dataset, bad = partly_bad
    good = [f"row {row}" for row in range(30) if row not in bad]
    for stop in range(26):
        node = reader([dataset], options={"on_error": "skip"}, block_size=7, block_bytes=40)
        got = []
        while len(got) < stop:
            got += [sample["text"] for sample in next(node)]
        state = json.loads(json.dumps(node.state_dict()))
        again = reader([dataset], options={"on_error": "skip"}, block_size=5)
        again.reset(state)
        assert got + [sample["text"] for sample in samples_of(again)] == good
        assert again.state_dict()["skipped"] == 5


def test_skipping_in_one_of_several_datasets(partly_bad, datasets):
    dataset, bad = partly_bad
    options, source = {"on_error": "skip"}, {"exhausted_policy": None, "stop_after_passes": 1}
    texts = [sample["text"] for sample in samples_of(reader([*datasets, dataset], options=options, **source))]
    everything = expected_order(datasets, **source)
    assert set(texts) == {sample["text"] for sample in everything} | {
        f"row {row}" for row in range(30) if row not in bad
    }


def test_broken_row_groups_are_skipped(tmp_path):
    path = tmp_path / "a.parquet"
    table = pa.table({"i": list(range(40)), "s": [os.urandom(200_000) for _ in range(40)]})
    pq.write_table(table, path, row_group_size=25, use_dictionary=False)
    contents = bytearray(path.read_bytes())
    column = pq.read_metadata(path).row_group(1).column(1)
    start = column.data_page_offset
    contents[start : start + column.total_compressed_size] = os.urandom(column.total_compressed_size)
    path.write_bytes(contents)
    dataset = tz.Dataset("p", str(path))
    with pytest.raises(tz.DataError, match=r"dataset 'p': .*a.parquet: row groups 1 to 1 cannot be decoded"):
        samples_of(reader([dataset]))
    node = reader([dataset], options={"on_error": "skip"})
    assert [sample["i"] for sample in samples_of(node)] == list(range(25))
    assert node.state_dict()["skipped"] == 15


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("make", [make_jsonl, make_parquet])
@pytest.mark.parametrize("what", ["truncate", "remove", "replace"])
def test_files_that_change_in_mid_run_raise_in_any_case(tmp_path, make, what, on_error):
    dataset = make(tmp_path / "d", [20, 20])
    node = reader([dataset], block_size=5, options={"on_error": on_error}, shuffle_shards=False)
    assert len(next(node)) == 5
    (path,) = (tmp_path / "d").glob("1.*[tl]")
    if what == "truncate":
        os.truncate(path, 100)
    elif what == "remove":
        path.unlink()
    else:
        path.write_text("something else")
    with pytest.raises(tz.DataError, match=r"dataset '.': .*/1\.\w+ (has changed since it was indexed|does not exist)"):
        samples_of(node)
    state = node.state_dict()
    assert state == {"source": {"cycle": 0, "position": 20}, "used": 0}


def test_a_missing_column_names_dataset_file_and_columns(tmp_path):
    make_parquet(tmp_path / "d", [3])
    dataset = tz.Dataset("d", str(tmp_path / "d"), columns={"text": "content"})
    with pytest.raises(tz.DataError, match=r"dataset 'd': .*0\.parquet: no column 'content'; it has 'text', 'ids'"):
        samples_of(reader([dataset]))
