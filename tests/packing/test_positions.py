import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchzephon.packing.positions import document_positions, ramp


@settings(deadline=None)
@given(st.lists(st.one_of(st.integers(0, 5), st.integers(1000, 5000), st.integers(65_500, 66_000)), max_size=20))
def test_each_document_counts_from_zero(lengths):
    positions = document_positions(np.asarray(lengths, np.int64))
    assert positions.dtype == np.int32
    assert np.array_equal(positions, np.concatenate([np.arange(length) for length in [*lengths, 0]]))


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 100_000])
def test_ramp(size):
    assert np.array_equal(ramp(size), np.arange(size))
    assert ramp(size).dtype == np.int32
    assert not ramp(size).flags.writeable
