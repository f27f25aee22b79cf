import pytest

from torchzephon.data.formats.base import KeepsIndex
from torchzephon.data.formats.registry import format_of_files, format_of_name, formats
from torchzephon.errors import DataError


def test_every_format_has_a_name_and_suffixes_of_its_own():
    suffixes = [suffix for each in formats().values() for suffix in each.suffixes]
    assert len(set(suffixes)) == len(suffixes)
    assert all(suffix.startswith(".") and suffix == suffix.lower() for suffix in suffixes)
    assert {"jsonl", "parquet"} <= set(formats())


def test_formats_by_name():
    assert format_of_name("jsonl").name == "jsonl"
    assert isinstance(format_of_name("jsonl"), KeepsIndex)
    assert not isinstance(format_of_name("parquet"), KeepsIndex)
    with pytest.raises(ValueError, match=r"format must be one of 'jsonl', 'parquet'.*, got 'csv'"):
        format_of_name("csv")


@pytest.mark.parametrize(
    ("names", "name"),
    [(["a.jsonl", "b.json.gz", "c.ndjson.zst"], "jsonl"), (["x/A.PARQUET", "b.pq"], "parquet")],
)
def test_formats_by_suffix(names, name):
    assert format_of_files(names).name == name


@pytest.mark.parametrize("name", ["a.csv", "a", "a.gz", "jsonl", "a.jsonl.bz2", "a.jsonl.tmp"])
def test_an_unknown_suffix_is_named_with_those_that_are_known(name):
    with pytest.raises(
        DataError, match=rf"format of '{name}' cannot be told .*jsonl: \.jsonl .*parquet: \.parquet"
    ) as e:
        format_of_files(["a.jsonl", name])
    assert "glob" in str(e.value)


def test_mixed_formats_are_refused_with_the_list():
    with pytest.raises(DataError, match=r"these are several: jsonl \(a\.jsonl\), parquet \(c\.parquet\)"):
        format_of_files(["a.jsonl", "b.jsonl", "c.parquet"])
