"""SampleMapper: change, drop, expand; errors; states at every block; names of functions."""

import functools
import json
import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torchdata.nodes import BaseNode, IterableWrapper, Mapper

import torchzephon as tz
from torchzephon.data.ragged import Ragged
from torchzephon.nodes.functions import function_name, source_digest
from torchzephon.nodes.mapper import SampleMapper


class Numbers(BaseNode):
    """Yields blocks of the given sizes over the samples {"n": 0}, {"n": 1}, ..."""

    def __init__(self, sizes):
        super().__init__()
        self.sizes = sizes

    def reset(self, initial_state=None):
        super().reset(initial_state)
        self.index, self.first = (0, 0) if initial_state is None else (initial_state["index"], initial_state["first"])

    def next(self):
        if self.index == len(self.sizes):
            raise StopIteration
        numbers = list(range(self.first, self.first + self.sizes[self.index]))
        self.index += 1
        self.first += len(numbers)
        rows = np.asarray(numbers, np.int64)
        work = tz.Work(rows.astype(np.int32) * 0, rows * 0, rows.astype(np.int32) // 100, rows)
        return tz.Block({"n": numbers}, work, [NamedRows()])

    def get_state(self):
        return {"index": self.index, "first": self.first}


class NamedRows:
    """Stands in for a Dataset: says where a row is."""

    def locate(self, shard, row):
        return f"dataset 'numbers', shard-{shard}.jsonl, row {row}"


def double(sample):
    return {"n": sample["n"] * 2}


def keep_thirds(sample):
    return sample if sample["n"] % 3 == 0 else None


def repeat(sample):
    """0 times, once, twice, 0 times, ..."""
    return [{"n": sample["n"], "copy": i} for i in range(sample["n"] % 3)]


def mixed(sample):
    n = sample["n"]
    if n % 7 < 4:
        return None
    if n % 7 == 4:
        raise ValueError(f"no {n} please")
    return {"n": n} if n % 2 else [{"n": n}, {"n": -n}]


def fail_on_five(sample):
    if sample["n"] == 5:
        raise KeyError("text")
    return sample


def values(blocks):
    return [sample for block in blocks for sample in block]


def test_changes_drops_and_expands():
    assert values(SampleMapper(Numbers([2, 1]), double)) == [{"n": 0}, {"n": 2}, {"n": 4}]
    assert values(SampleMapper(Numbers([4, 3]), keep_thirds)) == [{"n": 0}, {"n": 3}, {"n": 6}]
    expected = [{"n": 1, "copy": 0}, {"n": 2, "copy": 0}, {"n": 2, "copy": 1}, {"n": 4, "copy": 0}]
    assert values(SampleMapper(Numbers([5]), repeat)) == expected


def test_blocks_keep_the_pointers_of_the_samples_they_were_made_of():
    (block,) = SampleMapper(Numbers([5]), repeat)
    assert block.work.row.tolist() == [1, 2, 2, 4]
    assert block.locate(3) == "dataset 'numbers', shard-0.jsonl, row 4"


def test_never_yields_an_empty_block():
    blocks = list(SampleMapper(Numbers([1, 1, 1, 1, 1, 1, 1]), keep_thirds))
    assert [len(block) for block in blocks] == [1, 1, 1]


def test_samples_may_have_different_fields():
    def tag(sample):
        return {**sample, "odd": True} if sample["n"] % 2 else sample

    assert values(SampleMapper(Numbers([3]), tag)) == [{"n": 0}, {"n": 1, "odd": True}, {"n": 2}]


def test_takes_dicts_and_lists_of_dicts_and_token_columns():
    class Items(Numbers):
        def next(self):
            item = super().next()
            return item[0] if len(item) == 1 else list(item)

    assert values(SampleMapper(Items([1, 2]), double)) == [{"n": 0}, {"n": 2}, {"n": 4}]

    class Tokens(Numbers):
        def next(self):
            return super().next().replace({"input_ids": Ragged.from_rows([[1, 2, 3], [4]])})

    def head(sample):
        return {"input_ids": sample["input_ids"][:2]}

    (block,) = SampleMapper(Tokens([2]), head)
    assert [row.tolist() for row in block.columns["input_ids"]] == [[1, 2], [4]]


def test_a_function_may_modify_the_sample_it_is_given():
    def pop(sample):
        sample["m"] = sample.pop("n")
        return sample

    assert values(SampleMapper(Numbers([2]), pop)) == [{"m": 0}, {"m": 1}]


def test_error_names_sample_function_and_cause():
    node = SampleMapper(Numbers([10]), fail_on_five)
    with pytest.raises(
        tz.DataError, match=r"fail_on_five raised KeyError: 'text' for dataset 'numbers'.*row 5"
    ) as info:
        next(node)
    assert isinstance(info.value.__cause__, KeyError)
    assert 'on_error="skip"' in str(info.value)


def test_stop_iteration_from_the_function_does_not_end_the_data():
    def careless(sample):
        return next(iter([]))

    with pytest.raises(tz.DataError, match="raised StopIteration"):
        next(SampleMapper(Numbers([1]), careless))


def test_skips_are_counted_and_logged_now_and_then(caplog):
    def always(sample):
        raise ValueError("bad sample")

    with caplog.at_level(logging.WARNING):
        node = SampleMapper(Numbers([3, 7]), always, on_error="skip")
        assert list(node) == []
    assert node.state_dict()["skipped"] == 10
    assert len(caplog.records) == 4  # 1, 2, 4, 8
    assert "row 7" in caplog.text
    assert "bad sample" in caplog.text


def test_state_without_skips_has_no_count():
    node = SampleMapper(Numbers([2]), double, on_error="skip")
    next(node)
    assert node.state_dict() == {"source": {"index": 1, "first": 2}}


@pytest.mark.parametrize(
    ("result", "got"), [(3, "int"), ("text", "str"), ((1,), "tuple"), ([{}, 4], "a list with int"), (True, "bool")]
)
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_results_of_the_wrong_type_are_refused(result, got, on_error):
    def wrong(sample):
        return result

    with pytest.raises(TypeError, match=f"wrong must return a dict, None or a list of dicts, got {got} for dataset"):
        next(SampleMapper(Numbers([1]), wrong, on_error=on_error))


def test_arguments_are_checked():
    with pytest.raises(TypeError, match="fn must be a function"):
        SampleMapper(Numbers([1]), "double")
    with pytest.raises(TypeError, match="source must be a node, got list"):
        SampleMapper([1], double)
    with pytest.raises(ValueError, match=r'on_error must be "raise" or "skip", got \'ignore\''):
        SampleMapper(Numbers([1]), double, on_error="ignore")


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 9), max_size=12), st.sampled_from([double, keep_thirds, repeat, mixed]))
def test_a_state_after_any_block_resumes_right_after_it(sizes, fn):
    whole = SampleMapper(Numbers(sizes), fn, on_error="skip")
    blocks, states = [], [whole.state_dict()]
    for block in whole:
        blocks.append(list(block))
        states.append(whole.state_dict())
    end = whole.state_dict()
    for i, state in enumerate([*states, end]):
        again = SampleMapper(Numbers(sizes), fn, on_error="skip")
        again.reset(json.loads(json.dumps(state)))
        assert again.state_dict() == state
        assert [list(block) for block in again] == blocks[i:]
        assert again.state_dict() == end
        with pytest.raises(StopIteration):
            next(again)


def test_block_sizes_do_not_change_the_samples():
    expected = values(SampleMapper(Numbers([40]), mixed, on_error="skip"))
    for size in (1, 3, 7):
        sizes = [size] * (40 // size) + [40 % size]
        assert values(SampleMapper(Numbers(sizes), mixed, on_error="skip")) == expected


def test_reset_starts_again_and_forgets_the_count():
    node = SampleMapper(Numbers([30]), mixed, on_error="skip")
    first = values(node)
    assert node.skipped
    node.reset()
    assert node.skipped == 0
    assert values(node) == first


def test_describes_itself_by_its_function():
    node = SampleMapper(Numbers([1]), double)
    assert node.describe() == {"fn": double}
    assert node.estimate(None) is None


def build(fn):
    samples = [{"text": f"sample {i}"} for i in range(50)]
    node = tz.MixtureWorkSource([tz.Dataset.from_samples("numbers", samples)], exhausted_policy="repeat")
    return tz.Lanes(tz.SampleMapper(tz.Reader(node), fn), num_lanes=2, dp=(0, 1))


def test_in_lanes_another_function_is_refused_and_another_source_is_a_warning(caplog):
    def shout(sample):
        return {"text": sample["text"].upper()}

    def whisper(sample):
        return {"text": sample["text"].lower()}

    lanes = build(shout)
    next(lanes)
    state = lanes.state_dict()
    with pytest.raises(tz.StateError, match=r"SampleMapper\.fn.*shout.*whisper"):
        build(whisper).reset(state)
    whisper.__qualname__ = shout.__qualname__
    with caplog.at_level(logging.WARNING):
        build(whisper).reset(state)
    assert "shout has changed since the state was saved" in caplog.text


def test_in_lanes_an_error_names_the_sample():
    def picky(sample):
        raise ValueError("not this one")

    with pytest.raises(tz.LaneError, match="picky raised ValueError: not this one for") as info:
        next(build(picky))
    assert isinstance(info.value.__cause__, tz.DataError)


class Prefix:
    def __init__(self, text):
        self.text = text

    def __call__(self, sample):
        return sample

    def method(self, sample):
        return sample


def test_function_names():
    assert function_name(double) == f"{__name__}.double"
    assert function_name(lambda sample: sample) == f"{__name__}.test_function_names.<locals>.<lambda>"
    assert function_name(Prefix("a")) == f"{__name__}.Prefix"
    assert function_name(Prefix("a").method) == f"{__name__}.Prefix.method"
    assert function_name(len) == "builtins.len"
    assert function_name("a".upper) == "builtins.str.upper"
    partial = functools.partial(double, 1, "x", b=[1, {"k": None}], a=Prefix("a"), c=double)
    name = f"{__name__}.double"
    assert function_name(partial) == (f"{name}(1, 'x', ..., a={__name__}.Prefix, b=list(1, dict('k': None)), c={name})")
    assert function_name(functools.partial(double, np.zeros(3))) == f"{name}(ndarray, ...)"
    assert function_name(functools.partial(functools.partial(double, 1), x=2)) == f"{name}(1, ..., x=2)"


def test_a_spawned_process_gives_the_main_module_the_same_name():
    def spawned():
        pass

    spawned.__module__ = "__mp_main__"
    spawned.__qualname__ = "shout"
    assert function_name(spawned) == "__main__.shout"


def test_source_digests():
    assert len(source_digest(double)) == 16
    assert source_digest(double) != source_digest(repeat)
    assert source_digest(functools.partial(double, 1)) == source_digest(double)
    assert source_digest(Prefix("a")) == source_digest(Prefix)
    assert source_digest(Prefix("a").method) is not None
    assert source_digest(len) is None
    assert source_digest(eval("lambda sample: sample")) is None


def test_stock_mapper_functions_have_names_too():
    assert function_name(Mapper(Numbers([1]), double).map_fn) == f"{__name__}.double"


@pytest.mark.parametrize("count", [-1, "2", True, 1.0, None])
def test_a_damaged_count_of_skipped_samples_is_refused(count):
    node = tz.SampleMapper(IterableWrapper([{"a": 1}]), lambda sample: sample, on_error="skip")
    node.reset()
    next(node)
    with pytest.raises(tz.StateError, match="skipped samples must be an integer"):
        node.reset({**node.state_dict(), "skipped": count})
