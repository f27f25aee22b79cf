import subprocess
import sys

import numpy as np
import pytest

from torchzephon.data.block import MISSING
from torchzephon.data.formats.memory import MemoryFormat
from torchzephon.data.storage.store import Store, StoredFile

_FILE = StoredFile("in memory", 0)


def _read(samples, rows, columns, pool):
    made = MemoryFormat(samples)
    (shard,) = made.index(_FILE, Store())
    return made.read(shard, np.array(rows, np.int64), columns, Store(), pool)


def test_rows_are_the_objects_that_were_given(pool):
    array = np.arange(3)
    columns = _read([{"a": array, "b": "x"}, {"a": None}], [1, 0, 0], None, pool)
    assert columns["a"][1] is array
    assert columns["a"][0] is None
    assert columns["b"] == [MISSING, "x", "x"]


def test_columns_are_selected_and_renamed(pool):
    samples = [{"a": 1, "b": 2}, {"b": 3}]
    assert _read(samples, [0, 1], {"x": "b"}, pool) == {"x": [2, 3]}
    assert _read(samples, [0, 1], {"x": "nothing"}, pool) == {"x": [MISSING, MISSING]}
    assert _read(samples, [], None, pool) == {}


def test_sizes(pool):
    made = MemoryFormat([{"text": "abc", "n": 1, "ids": [1, 2]}, {}])
    (shard,) = made.index(_FILE, Store())
    assert (shard.num_samples, shard.num_bytes) == (2, 11)
    assert made.row_bytes(shard, np.array([1, 0]), None, Store(), pool).tolist() == [0, 11]


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (5, "samples must be a list of dicts, got int"),
        (iter([{}]), "samples must be a list of dicts"),
        ("text", "sample 0 must be a dict"),
        ([{}, [1]], "sample 1 must be a dict with text keys, got \\[1\\]"),
        ([{1: "x"}], "sample 0 must be a dict with text keys"),
    ],
)
def test_what_is_no_list_of_dicts_is_refused(samples, message):
    with pytest.raises(TypeError, match=message):
        MemoryFormat(samples)


_ODD = """[
    {"a": 1, "b": [1.5, None, True, "ü"]}, {"a": 2**70}, {"a": "\\ud800"}, {"a": np.arange(6)[::2]}, {"a": b"\\xff"},
    {"a": {1: 2}}, {"a": {"b": object()}}, {"a": float("nan")}, {},
]"""


def test_the_digest_is_the_same_in_every_process():
    imports = "import numpy as np; from torchzephon.data.formats.memory import MemoryFormat"
    code = f"{imports}; print(MemoryFormat({_ODD.strip()}).digest())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == MemoryFormat(eval(_ODD)).digest()


def test_the_digest_tells_contents_apart():
    variants = [
        [], [{}], [{}, {}], [{"a": 1}], [{"a": 2}], [{"b": 1}], [{"a": "1"}], [{"a": 2**70}], [{"a": 2**70 + 1}],
        [{"a": "\ud800"}], [{"a": "\ud801"}], [{"a": np.arange(3)}], [{"a": np.arange(4)[::2]}], [{"a": b"1"}],
        [{"a": 1}, {"a": 2}], [{"a": 2}, {"a": 1}], [{"a": object()}], [{"a": {"b": 1}}],
    ]  # fmt: skip
    assert len({MemoryFormat(samples).digest() for samples in variants}) == len(variants)
