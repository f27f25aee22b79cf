import pytest

from torchzephon.data.sizes import format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (0, 0),
        (123, 123),
        ("123", 123),
        ("7B", 7),
        ("1KB", 1000),
        ("1kib", 1024),
        ("1.5 GB", 1_500_000_000),
        ("2GiB", 2 << 30),
        (" 3 tb ", 3 * 10**12),
        ("4M", 4_000_000),
    ],
)
def test_sizes_are_read_as_people_write_them(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "1XB", "1e9", "1.GB", "IB", "1 2", "1IB"])
def test_texts_that_are_no_size_are_refused(text):
    with pytest.raises(ValueError, match='memory must be a number of bytes or a text such as "500MB"'):
        parse_bytes(text, "memory")


@pytest.mark.parametrize("value", [None, 1.5, True, b"1GB", [1]])
def test_other_types_are_refused(value):
    with pytest.raises(TypeError, match="memory must be"):
        parse_bytes(value, "memory")


def test_negative_numbers_are_refused():
    with pytest.raises(ValueError, match="memory must not be negative, got -1"):
        parse_bytes(-1, "memory")


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1500, "1.5 kB"), (2 * 10**9, "2.0 GB"), (10**16, "10000.0 TB")],
)
def test_sizes_are_written_as_people_read_them(size, text):
    assert format_bytes(size) == text
