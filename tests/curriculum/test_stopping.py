from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchzephon.curriculum.mixture import Mixture
from torchzephon.curriculum.stopping import Stopping, stopping_rule


def simulate(weights, sizes, rule, at_most):
    """Picks one sample after the other, and counts how many there are until the rule says stop."""
    n = [0] * len(weights)
    for t in range(at_most):
        if rule.min_passes is not None and all(m >= rule.min_passes * s for m, s in zip(n, sizes, strict=True)):
            return t
        d = min((Fraction(2 * m + 1, w), d) for d, (m, w) in enumerate(zip(n, weights, strict=True)))[1]
        passes = rule.max_passes[d]
        if passes is not None and n[d] >= passes * sizes[d]:
            return t
        n[d] += 1
    return None


DATASETS = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=4)


@settings(deadline=None, max_examples=100)
@given(datasets=DATASETS, passes=st.integers(1, 3))
def test_min_passes_against_simulation(datasets, passes):
    weights, sizes = zip(*datasets, strict=True)
    rule = Stopping(passes, (None,) * len(sizes))
    total = rule.total(Mixture.of(weights), sizes)
    assert total == simulate(weights, sizes, rule, 10_000)


@settings(deadline=None, max_examples=100)
@given(datasets=DATASETS, data=st.data())
def test_max_passes_against_simulation(datasets, data):
    weights, sizes = zip(*datasets, strict=True)
    passes = data.draw(
        st.lists(st.one_of(st.none(), st.integers(1, 3)), min_size=len(sizes), max_size=len(sizes)).filter(any)
    )
    rule = Stopping(None, tuple(passes))
    assert rule.total(Mixture.of(weights), sizes) == simulate(weights, sizes, rule, 10_000)


@settings(deadline=None)
@given(st.lists(st.integers(1, 10**11), min_size=1, max_size=8))
def test_in_proportion_to_the_sizes_every_sample_is_read_once(sizes):
    for rule in (Stopping(1, (None,) * len(sizes)), Stopping(None, (1,) * len(sizes))):
        mixture = Mixture.of(sizes)
        assert rule.total(mixture, sizes) == sum(sizes)
        assert mixture.counts(sum(sizes)) == sizes


def test_a_trillion_samples():
    mixture, sizes = Mixture.of([7, 2, 1]), [10**12, 10**9, 3]
    assert Stopping(1, (None,) * 3).total(mixture, sizes) == mixture.position(0, 10**12 - 1) + 1
    assert mixture.counts(mixture.position(1, 10**9)) == [
        mixture.counts(mixture.position(1, 10**9))[0],
        10**9,
        5 * 10**8,
    ]


def test_endless():
    assert Stopping(None, (None, None)).total(Mixture.of([1, 2]), [5, 5]) is None


NAMES = ["a", "b"]


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ({}, Stopping(1, (None, None))),
        ({"stop_after_passes": 3}, Stopping(3, (None, None))),
        ({"exhausted_policy": "repeat"}, Stopping(None, (None, None))),
        ({"exhausted_policy": "repeat", "stop_after_passes": 2}, Stopping(2, (None, None))),
        ({"exhausted_policy": {"a": "repeat"}, "stop_after_passes": 2}, Stopping(2, (None, None))),
        ({"exhausted_policy": "stop"}, Stopping(None, (1, 1))),
        ({"exhausted_policy": {"a": "repeat", "b": "stop"}}, Stopping(None, (None, 1))),
        ({"exhausted_policy": {"a": "repeat"}}, Stopping(None, (None, 1))),
        ({"exhausted_policy": "repeat", "max_repeats": 0}, Stopping(None, (1, 1))),
        ({"exhausted_policy": "repeat", "max_repeats": 2}, Stopping(None, (3, 3))),
        ({"exhausted_policy": "repeat", "max_repeats": {"b": 2}}, Stopping(None, (None, 3))),
        ({"exhausted_policy": {"a": "stop", "b": "repeat"}, "max_repeats": {"b": 2}}, Stopping(None, (1, 3))),
        ({"exhausted_policy": {"a": "stop", "b": "repeat"}, "max_repeats": {"a": None}}, Stopping(None, (1, None))),
        ({"max_repeats": 1}, Stopping(None, (2, 2))),
        ({"max_repeats": {"a": 1}}, Stopping(None, (2, None))),
    ],
)
def test_rules(arguments, rule):
    given = {"exhausted_policy": None, "stop_after_passes": None, "max_repeats": None, **arguments}
    assert stopping_rule(NAMES, **given) == rule


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"exhausted_policy": "stop", "stop_after_passes": 1}, ValueError, "drop one of the two"),
        ({"exhausted_policy": {"b": "stop"}, "stop_after_passes": 1}, ValueError, r"'stop' for \['b'\]"),
        ({"max_repeats": 1, "stop_after_passes": 1}, ValueError, "drop one of the two"),
        ({"max_repeats": {"b": 1}, "stop_after_passes": 1}, ValueError, r"\['b'\] from above"),
        ({"exhausted_policy": "stop", "max_repeats": 1}, ValueError, "exhausted_policy is 'stop'"),
        ({"exhausted_policy": {"a": "repeat"}, "max_repeats": {"b": 1}}, ValueError, "allows dataset 'b'"),
        ({"exhausted_policy": "redistribute"}, ValueError, "'repeat' or 'stop', got 'redistribute'"),
        ({"exhausted_policy": {"c": "stop"}}, ValueError, r"unknown datasets \['c'\]"),
        ({"max_repeats": {"c": 1}}, ValueError, r"max_repeats names unknown datasets \['c'\]"),
        ({"max_repeats": -1}, ValueError, "max_repeats must be at least 0"),
        ({"max_repeats": 1.5}, TypeError, "max_repeats must be an int"),
        ({"max_repeats": True}, TypeError, "max_repeats must be an int"),
        ({"stop_after_passes": 0}, ValueError, "stop_after_passes must be at least 1"),
        ({"stop_after_passes": "1"}, TypeError, "stop_after_passes must be an int"),
    ],
)
def test_rules_that_mean_nothing(arguments, error, message):
    given = {"exhausted_policy": None, "stop_after_passes": None, "max_repeats": None, **arguments}
    with pytest.raises(error, match=message):
        stopping_rule(NAMES, **given)
