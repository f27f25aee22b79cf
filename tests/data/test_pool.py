import copy
import multiprocessing
import pickle
import threading
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.threads import in_threads

from torchzephon.data.pool import Pool


class Value:
    """Something that can be referred to weakly."""


def test_loads_once_and_counts():
    pool = Pool(100)
    loads = []

    def load():
        loads.append(1)
        return "value", 40

    assert pool.get("a", load) == "value"
    assert pool.get("a", load) == "value"
    assert len(loads) == 1
    assert (pool.stats.hits, pool.stats.loads, pool.stats.bytes, pool.stats.peak) == (1, 1, 40, 40)


def test_the_least_recently_used_goes_first():
    pool = Pool(100)
    for key in "abc":
        pool.get(key, lambda key=key: (key, 40))
        pool.get("a", lambda: ("again", 40))
    assert pool.stats.loads == 3
    assert pool.stats.bytes == 80
    assert pool.stats.peak == 80
    pool.get("b", lambda: ("b", 40))
    assert pool.stats.loads == 4


def test_a_load_may_make_room_before():
    pool = Pool(100)
    alive = weakref.ref(pool.get("a", lambda: (Value(), 60)))

    def load():
        assert alive() is not None
        pool.make_room(50)
        assert alive() is None
        return "b", 50

    assert pool.get("b", load) == "b"


def test_a_value_larger_than_the_bound_is_served_and_kept_until_the_next():
    pool = Pool(10)
    assert pool.get("large", lambda: ("large", 1000)) == "large"
    assert pool.get("large", lambda: ("not loaded again", 1000)) == "large"
    pool.get("small", lambda: ("small", 1))
    assert pool.stats.bytes == 1


def test_nothing_is_held_once_evicted():
    pool = Pool(10)
    value = pool.get("a", lambda: (Value(), 10))
    alive = weakref.ref(value)
    pool.get("b", lambda: (Value(), 10))
    assert alive() is value
    del value
    assert alive() is None


def test_a_zero_bound_still_works():
    pool = Pool(0)
    assert [pool.get(key, lambda key=key: (key, 1)) for key in "abab"] == list("abab")
    assert pool.stats.loads == 4


def test_a_negative_bound_is_refused():
    with pytest.raises(ValueError, match="must not be negative, got -1"):
        Pool(-1)


def test_a_failing_load_raises_and_is_not_cached():
    pool = Pool(10)

    def fail():
        raise OSError("no such file")

    with pytest.raises(OSError, match="no such file"):
        pool.get("a", fail)
    assert pool.get("a", lambda: ("value", 1)) == "value"
    assert pool.stats.loads == 1


def test_threads_that_want_one_key_wait_for_one_load_and_others_go_on():
    pool = Pool(10)
    started, go_on = threading.Event(), threading.Event()
    loads = []

    def slow():
        loads.append(1)
        started.set()
        assert go_on.wait(10)
        return Value(), 1

    results = []
    threads = [threading.Thread(target=lambda: results.append(pool.get("slow", slow))) for _ in range(8)]
    for thread in threads:
        thread.start()
    assert started.wait(10)
    assert pool.get("other", lambda: ("other", 1)) == "other"  # while "slow" is being loaded
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert len(loads) == 1
    assert len(results) == 8
    assert len(set(map(id, results))) == 1
    assert pool.stats.hits == 7


def test_a_failing_load_raises_in_all_that_wait():
    pool = Pool(10)
    started, go_on = threading.Event(), threading.Event()
    loads, errors = [], []

    def fail():
        loads.append(1)
        started.set()
        assert go_on.wait(10)
        raise OSError("gone")

    def get():
        try:
            pool.get("a", fail)
        except OSError as error:
            errors.append(error)

    first = threading.Thread(target=get)
    first.start()
    assert started.wait(10)
    others = [threading.Thread(target=get) for _ in range(4)]
    for thread in others:
        thread.start()
    go_on.set()
    for thread in [first, *others]:
        thread.join(10)
    assert len(errors) == 5  # whoever came too late to wait has loaded, and failed, on its own


def test_an_interrupted_load_is_taken_over_by_one_that_waits():
    pool = Pool(10)
    started, go_on = threading.Event(), threading.Event()
    outcome = []

    def interrupted():
        started.set()
        assert go_on.wait(10)
        raise KeyboardInterrupt

    def first():
        try:
            pool.get("a", interrupted)
        except KeyboardInterrupt:
            outcome.append("interrupted")

    threads = [threading.Thread(target=first)]
    threads[0].start()
    assert started.wait(10)
    threads.append(threading.Thread(target=lambda: outcome.append(pool.get("a", lambda: ("value", 1)))))
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert sorted(outcome) == ["interrupted", "value"]


def test_a_load_may_get_other_keys():
    pool = Pool(100)
    assert pool.get("outer", lambda: (pool.get("inner", lambda: ("inner", 1)) + " and outer", 1)) == "inner and outer"
    assert pool.stats.loads == 2


def test_a_deep_copy_is_the_pool_itself_and_a_pickle_is_empty():
    pool = Pool(123)
    pool.get("a", lambda: (threading.Lock(), 1))  # a value that cannot be pickled
    assert copy.deepcopy({"pool": pool})["pool"] is pool
    clone = pickle.loads(pickle.dumps(pool))
    assert clone.memory_bytes == 123
    assert clone.stats.bytes == 0
    assert clone.get("a", lambda: ("loaded", 1)) == "loaded"


def _in_child(pool, results):
    results.put((pool.stats.bytes, pool.get("a", lambda: ("child's", 1)), pool.get("busy", lambda: ("child's", 1))))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_starts_empty_even_when_a_load_was_going_on():
    pool = Pool(10)
    pool.get("a", lambda: ("parent's", 1))
    started, go_on = threading.Event(), threading.Event()

    def slow():
        started.set()
        assert go_on.wait(30)
        return "parent's", 1

    thread = threading.Thread(target=lambda: pool.get("busy", slow))
    thread.start()
    assert started.wait(10)
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=_in_child, args=(pool, results))
    child.start()
    assert results.get(timeout=30) == (0, "child's", "child's")
    child.join(10)
    go_on.set()
    thread.join(10)
    assert pool.get("a", lambda: ("again", 1)) == "parent's"


@settings(deadline=None)
@given(
    bound=st.integers(0, 30),
    gets=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=60),
)
def test_bytes_never_exceed_the_bound_and_values_are_right(bound, gets):
    sizes = {key: 1 + key * 2 for key in range(10)}
    pool = Pool(bound)
    for key, _ in gets:
        assert pool.get(key, lambda key=key: (key * 11, sizes[key])) == key * 11
        assert pool.stats.bytes <= max(bound, sizes[key])
        assert pool.stats.peak <= max(bound, max(sizes.values()))
    assert pool.stats.hits + pool.stats.loads == len(gets)


def test_many_threads_at_random():
    pool = Pool(20)
    wrong = []

    def work(seed):
        for step in range(300):
            key = (step * 7 + seed * 13) % 17
            if pool.get(key, lambda key=key: (key * 3, key)) != key * 3:
                wrong.append(key)

    in_threads(work, 8, timeout=30)
    assert not wrong
    assert pool.stats.bytes <= 20
    assert pool.stats.hits + pool.stats.loads == 8 * 300


def test_what_is_discarded_is_gone_and_its_bytes_are_free():
    pool = Pool(100)
    value = pool.get("a", lambda: (Value(), 60))
    alive = weakref.ref(value)
    pool.discard("a", Value())  # not the one that is there
    assert pool.peek("a") is value
    pool.discard("a", value)
    pool.discard("a", value)
    pool.discard("never there", value)
    del value
    assert alive() is None
    assert pool.peek("a") is None
    assert pool.stats.bytes == 0


def test_looking_is_no_use():
    pool = Pool(100)
    for key in "ab":
        pool.get(key, lambda key=key: (key, 50))
    assert pool.peek("a") == "a"
    assert pool.peek("never there") is None
    pool.get("c", lambda: ("c", 50))
    assert [pool.peek(key) for key in "abc"] == [None, "b", "c"]
    assert pool.stats.hits == 0


def test_what_is_on_its_way_is_not_there_yet():
    pool = Pool(100)
    assert pool.get("a", lambda: (pool.peek("a"), 1)) is None


def test_a_value_grows_at_the_cost_of_others_and_shrinks():
    pool = Pool(100)
    values = {key: pool.get(key, lambda: (Value(), 30)) for key in "abc"}
    pool.resize("a", values["a"], 35)
    assert (pool.stats.bytes, pool.stats.peak) == (95, 95)
    pool.resize("a", values["a"], 50)  # though it is the one that was not used for the longest time
    assert pool.peek("a") is values["a"]
    assert [pool.peek(key) is None for key in "abc"] == [False, True, False]
    assert (pool.stats.bytes, pool.stats.peak) == (80, 95)
    pool.resize("a", values["a"], 1000)  # alone, it may be larger than the bound
    assert [pool.peek(key) is None for key in "abc"] == [False, True, True]
    pool.resize("a", values["a"], 5)
    assert pool.stats.bytes == 5
    pool.resize("a", values["b"], 50)  # another one
    pool.resize("b", values["b"], 50)  # gone
    assert pool.stats.bytes == 5


def test_room_is_made_at_the_cost_of_all_but_one():
    pool = Pool(100)
    for key in "abc":
        pool.get(key, lambda key=key: (key, 30))
    pool.make_room(10, but="a")
    assert [pool.peek(key) for key in "abc"] == ["a", "b", "c"]
    pool.make_room(11, but="a")
    assert [pool.peek(key) for key in "abc"] == ["a", None, "c"]
    pool.make_room(1000, but="a")
    assert [pool.peek(key) for key in "abc"] == ["a", None, None]
    assert pool.stats.bytes == 30
