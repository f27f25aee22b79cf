"""Units with pieces that fail, are interrupted, or are not what the footer told."""

import itertools
import threading
import time

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.interrupts import interrupt_at

from torchzephon.data.background import Task
from torchzephon.data.formats.unit import DECODER, BrokenError, Unit


class Source:
    """Pieces of the rows 0, 1, ...; ``errors``: what to raise in the place of some of the next steps."""

    nbytes = 7

    def __init__(self, sizes, errors=(), *, at_once=False):
        self.sizes, self.errors, self.at_once = sizes, list(errors), at_once
        self.decoded = []  # numbers of pieces
        self.opened = 0

    def __call__(self, piece):
        self.opened += 1
        starts = np.cumsum([0, *self.sizes])
        return Opened(self, iter([(i, range(starts[i], starts[i + 1])) for i in range(piece, len(self.sizes))]))


class Opened:
    nbytes = 7

    def __init__(self, source, pieces):
        self.source, self.pieces, self.at_once = source, pieces, source.at_once

    def __iter__(self):
        return self

    def __next__(self):
        if self.source.errors and (error := self.source.errors.pop(0)):
            raise error
        number, rows = next(self.pieces)
        self.source.decoded.append(number)
        return pa.RecordBatch.from_pydict({"ids": [[row] * 3 for row in rows], "i": list(rows)}), 100


def no_room():
    """Nothing to make room in."""


def values(unit, rows):
    picked = unit.pick(np.asarray(rows))
    assert [ids.tolist() for ids in picked["ids"]] == [[row] * 3 for row in picked["i"]]
    return picked["i"]


def test_it_decodes_as_far_as_it_is_asked_and_never_twice():
    unit, source = Unit(10), Source([3, 3, 4])
    assert unit.reach(np.array([1]), source, no_room)
    assert not unit.reach(np.array([2, 0]), source, no_room)
    assert source.decoded == [0]
    assert [unit.has(np.array([row])) for row in (2, 3)] == [True, False]
    unit.reach(np.array([9]), source, no_room)
    assert source.decoded == [0, 1, 2]
    assert source.opened == 1
    assert values(unit, [9, 0, 5, 5]) == [9, 0, 5, 5]


def test_what_comes_at_once_is_taken_at_once():
    unit, source = Unit(10), Source([3, 3, 4], at_once=True)
    unit.reach(np.array([0]), source, no_room)
    assert source.decoded == [0, 1, 2]


def test_room_is_made_before_each_piece():
    unit, source, made = Unit(10), Source([3, 3, 4]), []
    unit.reach(np.array([9]), source, lambda: made.append(list(source.decoded)))
    assert made == [[], [0], [0, 1]]


def test_bytes_are_those_of_the_pieces_that_are_held():
    unit, source = Unit(10), Source([3, 3, 4])
    own = unit.nbytes
    unit.reach(np.array([3]), source, no_room)
    spans = 2 * 10 * 8
    assert unit.nbytes == own + spans + 200 + 7
    assert not unit.mark_read(np.array([0, 1, 2]))
    assert unit.nbytes == own + spans + 100 + 7
    unit.reach(np.array([9]), source, no_room)
    assert unit.nbytes == own + spans + 200  # closed
    assert not unit.mark_read(np.array([3, 4, 5, 3]))
    assert unit.mark_read(np.arange(10))
    assert unit.nbytes == own + spans


def test_what_is_read_more_than_once_is_let_go_of_as_a_whole():
    unit = Unit(10, whole=True)
    unit.reach(np.array([9]), Source([3, 3, 4]), no_room)
    assert not unit.mark_read(np.arange(9))
    assert values(unit, range(10)) == list(range(10))
    assert unit.mark_read(np.array([9]))


def test_rows_that_were_let_go_of_are_not_picked():
    unit = Unit(10)
    unit.reach(np.array([9]), Source([3, 3, 4]), no_room)
    unit.mark_read(np.array([3, 4, 5]))
    assert unit.pick(np.array([2, 3])) is None
    assert not unit.has(np.array([2, 3]))
    assert values(unit, [2, 6]) == [2, 6]


@settings(deadline=None, max_examples=100)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=6),
    errors=st.lists(st.sampled_from([None, OSError("later"), KeyboardInterrupt()]), max_size=8),
    data=st.data(),
)
def test_whatever_interrupts_it_can_be_asked_again(sizes, errors, data):
    unit, source = Unit(sum(sizes)), Source(sizes, errors)
    for _ in range(12):
        rows = np.array(data.draw(st.lists(st.integers(0, sum(sizes) - 1), min_size=1, max_size=5)))
        try:
            unit.reach(rows, source, no_room)
        except (OSError, KeyboardInterrupt):
            continue
        assert values(unit, rows) == rows.tolist()
    assert source.decoded == list(range(len(source.decoded)))  # each once, in order


def test_an_interrupt_at_any_line_leaves_it_whole():
    for line in itertools.count(1):
        unit, source = Unit(10), Source([3, 3, 4])
        if not interrupt_at(
            line, "_decode_piece", lambda unit=unit, source=source: unit.reach(np.array([9]), source, no_room)
        ):
            break
        unit.reach(np.array([9]), source, no_room)
        assert values(unit, range(10)) == list(range(10))
    assert line > 20


def test_who_waits_for_a_unit_decodes_others_meanwhile():
    begun, helped = threading.Event(), []
    unit = Unit(3)

    class Slow(Source):
        def __call__(self, piece):
            begun.set()
            while not helped:  # until the other has come, and helped
                time.sleep(0.001)
            return super().__call__(piece)

    source = Slow([3])
    Task(lambda: unit.reach(np.array([2]), source, no_room), DECODER)
    assert begun.wait(10)
    task = Task(lambda: helped.append(threading.current_thread()), DECODER)
    assert not unit.reach(np.array([0]), source, no_room)
    assert helped == [threading.main_thread()]
    assert task.result() is None
    assert values(unit, [0, 1, 2]) == [0, 1, 2]
    assert source.opened == 1


@pytest.mark.parametrize("sizes", [[3, 3], [3, 3, 5], []])
def test_another_number_of_rows_than_the_footer_told_is_broken(sizes):
    unit, source = Unit(10), Source(sizes)
    unit.reach(np.array([9]), source, no_room)
    assert unit.broken == f"there are {sum(sizes)} rows instead of 10"
    assert unit.first_broken(np.array([0, 5, 7, 9])) == (2 if sizes else 0)
    assert unit.reach(np.array([9]), source, no_room) is False
    if sizes:
        assert values(unit, range(6)) == list(range(6))


def test_what_is_broken_stays_so():
    unit, source = Unit(10), Source([3, 3, 4], [None, BrokenError("bad page")])
    unit.reach(np.array([9]), source, no_room)
    assert unit.broken == "bad page"
    assert values(unit, [0, 1, 2]) == [0, 1, 2]
    assert unit.first_broken(np.array([2])) is None
    assert unit.first_broken(np.array([2, 3])) == 1
    unit.reach(np.array([9]), source, no_room)
    assert source.opened == 1
