import functools
import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchzephon.errors import StateError
from torchzephon.packing import registry, windows
from torchzephon.packing.base import Options
from torchzephon.packing.registry import ALGORITHMS
from torchzephon.packing.wrap import Wrap

BINS = sorted(set(ALGORITHMS) - {"wrap"})


def names(lengths):
    """For each token, the number of its document."""
    return np.repeat(np.arange(len(lengths)), lengths)


def pack(lengths, capacity, algorithm, block=7, state=None, skip=0, **options):
    """Yields (sequence as an array of document numbers, cursor after it)."""
    packing = ALGORITHMS[algorithm](capacity, Options(**options), state)
    at, closed = skip, False
    while True:
        pieces = packing.next()
        if pieces is not None:
            (parts,) = pieces
            released, after = packing.cursor()
            yield np.concatenate(parts), (skip + released, after)
        elif closed:
            return
        elif at < len(lengths):
            rows = np.asarray(lengths[at : at + block], np.int64)
            packing.add([names(rows) + at], rows)
            at += block
        else:
            packing.close()
            closed = True


lengths_of = st.lists(st.one_of(st.integers(0, 10), st.integers(0, 40)), max_size=120)
cases = st.tuples(lengths_of, st.integers(1, 20), st.sampled_from(BINS), st.integers(1, 20))


@settings(deadline=None, max_examples=80)
@given(cases, st.integers(1, 30))
def test_split_packs_every_token_once_and_cuts_only_long_documents(case, window):
    lengths, capacity, algorithm, block = case
    sequences = [sequence for sequence, _ in pack(lengths, capacity, algorithm, block, window=window)]
    assert all(0 < len(sequence) <= capacity for sequence in sequences)
    assert all((np.diff(sequence) >= 0).all() for sequence in sequences)  # in order of arrival
    counts = np.bincount(np.concatenate([*sequences, np.zeros(0, np.int64)]), minlength=len(lengths))
    assert counts.tolist() == lengths
    for number, length in enumerate(lengths):
        assert sum(number in sequence for sequence in sequences) == -(-length // capacity)


@settings(deadline=None, max_examples=80)
@given(cases, st.integers(1, 30))
def test_truncate_and_drop(case, window):
    lengths, capacity, algorithm, block = case
    for oversize in ("truncate", "drop"):
        expected = [min(n, capacity) if oversize == "truncate" else n * (n <= capacity) for n in lengths]
        sequences = [s for s, _ in pack(lengths, capacity, algorithm, block, window=window, oversize=oversize)]
        counts = np.bincount(np.concatenate([*sequences, np.zeros(0, np.int64)]), minlength=len(lengths))
        assert counts.tolist() == expected


@settings(deadline=None, max_examples=80)
@given(cases, st.integers(1, 30), st.sampled_from(["split", "truncate", "drop"]), st.data())
def test_going_on_from_any_cursor_with_another_block_size(case, window, oversize, data):
    lengths, capacity, algorithm, block = case
    options = {"window": window, "oversize": oversize}
    expected = list(pack(lengths, capacity, algorithm, block, **options))
    for at in range(0, len(expected), 1 + len(expected) // 8):
        skip, state = expected[at][1]
        block = data.draw(st.integers(1, 20))
        rest = list(pack(lengths, capacity, algorithm, block, state, skip, **options))
        assert [s.tolist() for s, _ in rest] == [s.tolist() for s, _ in expected[at + 1 :]]
        assert [cursor for _, cursor in rest] == [cursor for _, cursor in expected[at + 1 :]]


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32), st.sampled_from(BINS))
def test_no_document_waits_for_long(seed, algorithm):
    """Once a window is packed, all documents of the window before it are given out."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 25, 400).tolist()
    starts = []
    given_out = np.zeros(400, np.int64)
    for sequence, (oldest, cursor) in pack(lengths, 20, algorithm, window=16):
        np.add.at(given_out, sequence, 1)
        if cursor[windows.Windows.SEQUENCE_KEY] == 0:
            fresh = oldest + cursor.get(windows.Windows.FRESH_KEY, 0)
            if starts:
                assert given_out[: starts[-1]].tolist() == lengths[: starts[-1]]
            starts.append(fresh)
    assert len(starts) > 5


def test_documents_of_the_emptiest_sequences_wait():
    lengths = [6] * 16 + [4] * 2  # ten sequences: two of 6 + 4, the others of 6
    cursors = [cursor for _, cursor in pack(lengths * 3, 10, "best_fit", window=18)]
    assert any(windows.Windows.WAITED_KEY in state for _, state in cursors)


@pytest.mark.parametrize("algorithm", BINS)
@pytest.mark.parametrize(("mean", "capacity"), [(1000, 2049), (300, 513), (50, 8193), (300, 32769), (3000, 2049)])
def test_a_stream_is_packed_densely(algorithm, mean, capacity):
    rng = np.random.default_rng(0)
    count = max(4096, 30 * capacity // mean)
    lengths = np.maximum(rng.lognormal(np.log(mean) - 0.5, 1, count), 1).astype(np.int64)
    fills = [len(sequence) for sequence, _ in pack(lengths, capacity, algorithm, block=256)]
    assert np.mean(fills[: len(fills) * 3 // 4]) / capacity > (0.985 if algorithm == "best_fit" else 0.975)


def test_the_state_stays_small():
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 2049, 5000).tolist()
    sizes = [len(str(state)) for _, (_, state) in pack(lengths, 2049, "first_fit", block=256)]
    assert max(sizes) < 400


def test_sequences_come_in_the_order_of_their_first_documents():
    lengths = np.random.default_rng(0).integers(1, 100, 200).tolist()
    firsts = [int(sequence[0]) for sequence, _ in pack(lengths, 100, "best_fit", window=1000)]
    assert firsts == sorted(firsts)


def test_a_window_ends_before_it_fills_the_memory(monkeypatch):
    monkeypatch.setattr(windows, "_MOST_TOKENS", 1000)
    packing = ALGORITHMS["best_fit"](10, Options(window=10**6))
    for _ in range(11):
        assert packing.next() is None
        packing.add([np.zeros(100, np.int8)], np.asarray([100]))
        if packing.next() is not None:
            return
    pytest.fail("a window of 1000 tokens should have been packed")


def test_what_is_cut_is_counted_and_logged(caplog):
    lengths = [5, 30, 8, 11] * 50
    with caplog.at_level(logging.WARNING):
        *_, (_, (_, state)) = pack(lengths, 10, "best_fit", window=16, oversize="drop")
    assert state[windows.Windows.CUT_KEY] > 50
    assert "longer than 10 tokens were left out" in caplog.text
    assert len(caplog.records) < 10

    packing = ALGORITHMS["best_fit"](10, Options(oversize="truncate"))
    packing.add([np.zeros(54, np.int8)], np.asarray([5, 30, 8, 11]))
    packing.close()
    while packing.next() is not None:
        pass
    assert packing.cut == 2


def test_other_data_than_before_is_refused():
    lengths = np.random.default_rng(0).integers(1, 20, 300).tolist()
    cursors = [cursor for _, cursor in pack(lengths, 20, "best_fit", window=32)]
    skip, state = next((s, c) for s, c in cursors if c[windows.Windows.SEQUENCE_KEY] > 3)
    with pytest.raises(StateError, match="cannot be packed again"):
        list(pack([1] * 300, 20, "best_fit", state={**state, "sequence": 10**4}, skip=skip, window=32))
    with pytest.raises(StateError, match="cannot be packed again"):
        list(pack([], 20, "best_fit", state=state, window=32))
    waited = next(c for _, c in cursors if windows.Windows.WAITED_KEY in c)
    with pytest.raises(StateError, match="cannot be packed again"):
        list(pack([0] * 300, 20, "best_fit", state=waited, window=32))
    with pytest.raises(StateError, match="cannot be packed again"):
        list(pack([5], 20, "best_fit", state=waited, window=32))


def test_wrap_refuses_other_data():
    with pytest.raises(StateError, match="used 7 tokens of a document that now has 5"):
        list(pack([5], 4, "wrap", state={"token": 7}))
    with pytest.raises(StateError, match="no document follows"):
        list(pack([], 4, "wrap", state={"token": 7}))


@pytest.mark.parametrize("algorithm", BINS)
def test_options_that_mean_nothing_are_refused(algorithm):
    with pytest.raises(ValueError, match="drop_last"):
        ALGORITHMS[algorithm](4, Options(drop_last=True))
    with pytest.raises(ValueError, match="window and oversize"):
        Wrap(4, Options(window=3))
    with pytest.raises(ValueError, match="window and oversize"):
        Wrap(4, Options(oversize="drop"))


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_nothing_in_nothing_out(algorithm):
    assert list(pack([], 4, algorithm)) == []
    assert list(pack([0, 0, 0], 4, algorithm, block=1)) == []


def test_wrap_copies_nothing_inside_a_block():
    packing = Wrap(4, Options())
    tokens = np.arange(10)
    packing.add([tokens], np.asarray([10]))
    assert all(np.shares_memory(packing.next()[0][0], tokens) for _ in range(2))


def test_an_algorithm_of_ones_own(monkeypatch):
    def next_fit(lengths, capacity, waited=0):
        sequence, room, chosen = -1, 0, []
        for length in lengths.tolist():
            if length > room:
                sequence, room = sequence + 1, capacity
            chosen.append(sequence)
            room -= length
        return np.asarray(chosen, np.int64)

    monkeypatch.setitem(registry.ALGORITHMS, "next_fit", functools.partial(windows.Windows, next_fit))
    lengths = [3, 3, 5, 0, 4, 4, 9, 1]
    sequences = [sequence.tolist() for sequence, _ in pack(lengths, 8, "next_fit")]
    assert sequences == [[0] * 3 + [1] * 3, [2] * 5, [4] * 4 + [5] * 4, [6] * 8, [6, 7]]
