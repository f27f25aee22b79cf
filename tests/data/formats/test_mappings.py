import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.threads import in_threads

from torchzephon.data.formats import mappings
from torchzephon.data.formats.mappings import lease


@pytest.fixture(autouse=True)
def no_others():
    mappings._free.clear()


def test_memory_is_used_again_when_nothing_refers_to_it():
    _, first = lease(1000)
    address = first.address
    view = np.frombuffer(first, np.uint8)[10:20]
    del first
    _, second = lease(1000)
    assert second.address != address  # the view is still there
    del view
    _, third = lease(1000)
    assert third.address == address


def test_memory_that_is_much_too_large_is_left_for_others():
    size = 1 << 20
    address = lease(size)[1].address
    _, small = lease(100)
    assert small.address != address
    assert lease(size - 1000)[1].address == address


def test_little_is_kept():
    held = [lease(1) for _ in range(5 * mappings._MOST_KEPT)]
    held.clear()
    assert len(mappings._free) == mappings._MOST_KEPT


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 1 << 20)), max_size=40))
def test_no_two_share_memory(steps):
    held = []
    for number, (take, size) in enumerate(steps):
        if take or not held:
            writable, kept = lease(size)
            assert size <= writable.size == kept.size
            np.frombuffer(writable, np.uint8)[:size] = number
            del writable
            held.append((number, size, kept))
        else:
            held.pop(size % len(held))
        for mark, length, kept in held:
            assert (np.frombuffer(kept, np.uint8)[:length] == mark).all()


def test_threads_take_and_leave_at_once():
    wrong = []

    def work(mark):
        for _ in range(300):
            writable, kept = lease(4096)
            np.frombuffer(writable, np.uint8)[:4096] = mark
            del writable
            if not (np.frombuffer(kept, np.uint8)[:4096] == mark).all():
                wrong.append(mark)

    in_threads(work, 4)
    assert wrong == []
