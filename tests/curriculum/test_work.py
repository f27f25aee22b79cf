import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from torchzephon.curriculum.work import Work


def make(pointers):
    dataset, shard, row = (np.array([pointer[part] for pointer in pointers]) for part in range(3))
    return Work(
        dataset.astype(np.int32), np.zeros(len(pointers), np.int64), shard.astype(np.int32), row.astype(np.int64)
    )


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2**31 - 1) | st.integers(0, 2), st.integers(0, 2**40))))
def test_by_shard_has_every_pointer_once_and_where_it_stands(pointers):
    found, seen = {}, []
    for group in make(pointers).by_shard():
        seen.append((group.dataset, group.shard))
        assert np.all(np.diff(group.at) > 0)
        for at, row in zip(group.at.tolist(), group.rows.tolist(), strict=True):
            found[at] = (group.dataset, group.shard, row)
    assert [found[at] for at in sorted(found)] == pointers
    assert len(set(seen)) == len(seen)
