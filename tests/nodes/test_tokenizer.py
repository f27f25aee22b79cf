"""TextTokenizer: blocks in, token ids out; its arguments, errors and state."""

import copy
import json
import logging
import pickle
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tokenizer_zoo import generated_texts
from torchdata.nodes import BaseNode, IterableWrapper, Loader
from transformers import AutoTokenizer

import torchzephon as tz
from torchzephon.curriculum.work import Work
from torchzephon.nodes.graph import Estimate
from torchzephon.text import shared


class Source(BaseNode):
    """Gives the items of a list; its state is how many it gave."""

    def __init__(self, items):
        super().__init__()
        self.items = items
        self.given = 0

    def reset(self, initial_state=None):
        super().reset(initial_state)
        self.given = 0 if initial_state is None else initial_state["given"]

    def next(self):
        if self.given == len(self.items):
            raise StopIteration
        self.given += 1
        return self.items[self.given - 1]

    def get_state(self):
        return {"given": self.given}


@pytest.fixture(scope="module")
def reference(tokenizer_path):
    return AutoTokenizer.from_pretrained(tokenizer_path)


def run(items, tokenizer, **options):
    """All blocks that a node makes of items."""
    node = tz.TextTokenizer(Source(items), tokenizer, **options)
    node.reset()
    return list(node)


def ids_of(blocks):
    return [row.tolist() for block in blocks for row in block.columns["input_ids"]]


def blocks_of(texts, sizes):
    """Texts in blocks of these sizes, over and over."""
    blocks, start, turn = [], 0, 0
    while start < len(texts):
        blocks.append(tz.Block({"text": texts[start : start + sizes[turn % len(sizes)]]}))
        start, turn = start + sizes[turn % len(sizes)], turn + 1
    return blocks


def test_a_block_becomes_ids_and_kept_fields(tokenizer_path, reference):
    texts = ["one two", "", "three<|endoftext|>"]
    block = tz.Block({"text": texts, "id": [1, 2, 3], "score": np.array([0.1, 0.2, 0.3]), "url": ["a", "b", None]})
    (got,) = run([block], tokenizer_path, keep=("id", "score", "url"))
    assert sorted(got.columns) == ["id", "input_ids", "score", "url"]
    assert got.columns["id"] == [1, 2, 3]
    assert got.columns["url"] == ["a", "b", None]
    assert got.columns["score"].tolist() == [0.1, 0.2, 0.3]
    assert got.columns["input_ids"].values.dtype == np.int32
    assert ids_of([got]) == [[*reference(text)["input_ids"], 0] for text in texts]
    assert ids_of([got])[1] == [0]


@pytest.mark.parametrize(
    "items",
    [
        [{"text": "one two"}, {"text": "three"}],
        [[{"text": "one two"}, {"text": "three"}]],
        [tz.Block({"text": ["one two"]}), {"text": "three"}],
        [tz.Block({"text": [b"one two", "three"]})],
        [tz.Block({"text": np.array(["one two", "three"])})],
        [tz.Block({"text": np.array(["one two", b"three"], object)})],
        [[], tz.Block({"text": []}), [{"text": "one two"}, {"text": bytearray(b"three")}]],
    ],
)
def test_what_may_come_in(tokenizer_path, reference, items):
    assert ids_of(run(items, tokenizer_path)) == [[*reference(text)["input_ids"], 0] for text in ("one two", "three")]


def test_stock_nodes_around_it(tokenizer_path, reference):
    node = tz.TextTokenizer(IterableWrapper([{"text": "one two"}, {"text": "three"}]), tokenizer_path)
    assert ids_of(Loader(node)) == [[*reference(text)["input_ids"], 0] for text in ("one two", "three")]


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 10**6),
    st.lists(st.integers(1, 9), min_size=1, max_size=3),
    st.sampled_from([{}, {"max_length": 5, "overflow": "split"}, {"max_length": 5, "overflow": "truncate"}]),
)
def test_block_size_does_not_change_the_samples(tokenizer_path, seed, sizes, options):
    texts = generated_texts(12, seed=seed, longest=8)
    (whole,) = run([tz.Block({"text": texts})], tokenizer_path, **options)
    assert ids_of(run(blocks_of(texts, sizes), tokenizer_path, **options)) == ids_of([whole])


def test_split_pieces_are_the_document_and_keep_its_fields_and_pointers(tokenizer_path):
    texts = ["a b c d e f g h i j", "x", ""]
    zeros = np.zeros(3, np.int32)
    work = Work(zeros, zeros.astype(np.int64), zeros, np.array([7, 8, 9]))
    block = tz.Block({"text": texts, "id": [1, 2, 3]}, work, [tz.Dataset.from_samples("d", [{}] * 10)])
    (whole,) = run([block], tokenizer_path, special_tokens="bos_eos")
    (cut,) = run([block], tokenizer_path, special_tokens="bos_eos", max_length=4, overflow="split", keep=["id"])
    lengths = cut.columns["input_ids"].lengths
    assert lengths.max() == 4
    assert cut.columns["input_ids"].flat.tolist() == whole.columns["input_ids"].flat.tolist()
    pieces = -(-whole.columns["input_ids"].lengths // 4)
    assert cut.columns["id"] == np.repeat([1, 2, 3], pieces).tolist()
    assert cut.work.row.tolist() == np.repeat([7, 8, 9], pieces).tolist()
    assert len(cut) == len(lengths)


def test_split_of_short_documents_changes_nothing(tokenizer_path):
    block = tz.Block({"text": ["x", "y"], "id": [1, 2]})
    (got,) = run([block], tokenizer_path, max_length=100, overflow="split", keep=["id"])
    assert got.columns["id"] == [1, 2]
    assert len(got) == 2


@pytest.mark.parametrize("mode", ["eos", "bos_eos", "none", "tokenizer_default"])
@pytest.mark.parametrize("family", ["gpt2", "wordpiece"])
def test_truncated_documents_keep_their_control_tokens(tokenizers_dir, family, mode):
    block = tz.Block({"text": ["a b c d e f g h i j", "x", ""]})
    (whole,) = run([block], tokenizers_dir(family), special_tokens=mode)
    (cut,) = run([block], tokenizers_dir(family), special_tokens=mode, max_length=5, overflow="truncate")
    after = {"eos": 1, "bos_eos": 1, "none": 0, "tokenizer_default": 1 if family == "wordpiece" else 0}[mode]
    for long, short in zip(ids_of([whole]), ids_of([cut]), strict=True):
        assert short == (long if len(long) <= 5 else long[: 5 - after] + long[len(long) - after :])


def test_truncation_is_that_of_transformers(tokenizers_dir):
    text = "a b c d e f g h i j"
    tokenizer = AutoTokenizer.from_pretrained(tokenizers_dir("wordpiece"))
    expected = tokenizer(text, truncation=True, max_length=6)["input_ids"]
    options = {"special_tokens": "tokenizer_default", "max_length": 6, "overflow": "truncate"}
    assert ids_of(run([{"text": text}], tokenizers_dir("wordpiece"), **options)) == [expected]


BAD = [
    ({"body": "x"}, "is missing; the sample has the fields 'body'"),
    ({}, r"is missing; the sample has the fields \(none\)"),
    ({"text": None}, "is null"),
    ({"text": 3}, "is not a text but int"),
    (
        {"text": {"a": 1, "b": "c"}},
        "is not a text but dict with 'a', 'b', of which a path names one",
    ),
    ({"text": ["a", "b"]}, "is not a text but list"),
    ({"text": ("a", "b")}, "is not a text but tuple"),
    ({"text": "ab\ud800"}, r"has a lone surrogate, '\\ud800' at character 2"),
    ({"text": b"ab\xff"}, "is not UTF-8: invalid start byte at byte 2"),
]


@pytest.mark.parametrize(("sample", "message"), BAD)
@pytest.mark.parametrize("backend", ["fastokens", "tokenizers"])
def test_samples_without_a_usable_text(tokenizer_path, sample, message, backend):
    with pytest.raises(tz.DataError, match=f"row 1 of a block: field 'text' {message}"):
        run([[{"text": "fine"}, sample]], tokenizer_path, backend=backend)


def test_an_error_names_the_file_and_another_field_helps(tokenizer_path):
    dataset = tz.Dataset.from_samples("web", [{"content": "x"}] * 5)
    zero = np.zeros(1, np.int32)
    work = Work(zero, zero.astype(np.int64), zero, np.array([3]))
    block = tz.Block({"content": ["x"]}, work, [dataset])
    with pytest.raises(tz.DataError, match=r"'web'.*row 3.*'content'.*field=\.\.\..*on_error=\"skip\""):
        run([block], tokenizer_path)
    assert len(run([block], tokenizer_path, field="content")) == 1


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"text": "content"},
            r"is missing \(Dataset\(columns=...\) reads 'content' of the file as 'text': check these ",
        ),
        (
            {"a": "x", "b": "y", "i": "id"},
            r"\(Dataset\(columns=...\) reads 'x' of the file as 'a', 'y' of the file as 'b'",
        ),
        ({"id": "id"}, "is missing; the sample has the fields 'id'"),
        ({"text": "id", "a": "x"}, "is not a text but int; the sample has the fields 'text'"),
        (None, "is missing; the sample has the fields 'id', 'body'"),
    ],
)
def test_columns_that_the_file_does_not_have_are_named(tokenizer_path, tmp_path, caplog, columns, message):
    (tmp_path / "a.jsonl").write_text('{"id": 1, "body": "x"}\n')
    node = tz.Reader(tz.MixtureWorkSource([tz.Dataset("web", tmp_path, columns=columns)]))
    with pytest.raises(tz.DataError, match=f"row 0: field 'text' .*{message}"):
        next(tz.TextTokenizer(node, tokenizer_path))
    node.reset()
    assert list(tz.TextTokenizer(node, tokenizer_path, on_error="skip")) == []
    assert re.search(message.partition("; the sample")[0], caplog.text)


def test_bad_samples_are_skipped_counted_and_logged(tokenizer_path, caplog):
    items = [[{"text": "fine", "id": 0}, *({**sample, "id": 9} for sample, _ in BAD), {"text": b"also", "id": 1}]]
    items += [[sample] for sample, _ in BAD]
    items.append({"text": "last", "id": 2})
    node = tz.TextTokenizer(Source(items), tokenizer_path, on_error="skip", keep=["id"])
    node.reset()
    assert "skipped" not in node.state_dict()
    blocks = list(node)
    assert [block.columns["id"] for block in blocks] == [[0, 1], [2]]
    assert node.state_dict() == {"source": {"given": len(items)}, "skipped": 2 * len(BAD)}
    told = [record for record in caplog.records if "skipped sample number" in record.message]
    assert len(told) == 5  # the 1st, 2nd, 4th, 8th and 16th
    assert "row 1 of a block: field 'text' is missing" in told[0].message


def test_a_state_is_a_place_in_the_source_and_the_count(tokenizer_path):
    items = [{"text": None}, *({"text": text} for text in generated_texts(6))]
    node = tz.TextTokenizer(Source(items), tokenizer_path, on_error="skip")
    node.reset()
    everything = ids_of(node)
    node.reset()
    first = ids_of([next(node), next(node)])
    state = json.loads(json.dumps(node.state_dict()))
    assert state == {"source": {"given": 3}, "skipped": 1}
    again = tz.TextTokenizer(Source(items), tokenizer_path, on_error="skip")
    again.reset(state)
    again.reset(state)
    assert again.state_dict() == state
    assert first + ids_of(again) == everything
    end = again.state_dict()
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(again)
    again.reset(end)
    assert list(again) == []


@settings(deadline=None, max_examples=30)
@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4), data=st.data())
def test_blocks_encoded_ahead_are_not_counted_before_they_are_given(tokenizer_path, sizes, data):
    texts = [text if number % 5 else None for number, text in enumerate(generated_texts(20))]
    blocks = blocks_of(texts, sizes)
    node = tz.TextTokenizer(Source(blocks), tokenizer_path, on_error="skip")
    node.reset()
    states, given = [node.state_dict()], []
    for block in node:
        given.append(ids_of([block]))
        states.append(node.state_dict())
    used = [number + 1 for number, block in enumerate(blocks) if any(block.columns["text"])]
    for number, state in zip(used, states[1:], strict=True):
        bad = sum(text is None for block in blocks[:number] for text in block.columns["text"])
        assert state == {"source": {"given": number}} | ({"skipped": bad} if bad else {})
    start = data.draw(st.integers(0, len(given)))
    again = tz.TextTokenizer(Source(blocks), tokenizer_path, on_error="skip")
    again.reset(states[start])
    assert [ids_of([block]) for block in again] == given[start:]


@pytest.mark.parametrize("bad", [TypeError("from the source"), "not a sample", {"text": 5}, {"text": "\ud800"}])
def test_an_error_comes_in_its_turn(tokenizer_path, bad):
    class Failing(Source):
        def next(self):
            item = super().next()
            if isinstance(item, Exception):
                raise item
            return item

    items = [{"text": "a"}, {"text": "b"}, {"text": "c"}, bad, {"text": "d"}]
    node = tz.TextTokenizer(Failing(items), tokenizer_path)
    node.reset()
    for count in (1, 2, 3):
        next(node)
        assert node.state_dict() == {"source": {"given": count}}
    with pytest.raises((TypeError, tz.DataError)):
        next(node)


def test_the_samples_read_last_are_those_of_the_block_given(tokenizer_path):
    dataset = tz.Dataset.from_samples("m", [{"text": f"w {number}"} for number in range(45)])
    source = tz.MixtureWorkSource([dataset], block_size=10, exhausted_policy="stop")
    node = tz.TextTokenizer(tz.Reader(source), tokenizer_path)
    node.reset()
    for count, block in enumerate(node, 1):
        assert np.array_equal(source.last.row, block.work.row)
        assert count <= 5


def test_bytes_after_the_first_block(tokenizer_path, reference):
    texts = ["a b", "c", "d e", "f"]
    blocks = [tz.Block({"text": np.array([text.encode()], object)}) for text in texts]
    assert ids_of(run(blocks, tokenizer_path, special_tokens="none")) == [
        reference(text)["input_ids"] for text in texts
    ]


def test_a_copy_of_a_node_in_use_goes_on_alike(tokenizer_path):
    node = tz.TextTokenizer(Source([{"text": text} for text in generated_texts(8)]), tokenizer_path)
    node.reset()
    for _ in range(3):
        next(node)
    other = pickle.loads(pickle.dumps(node))
    another = copy.deepcopy(node)
    assert ids_of(node) == ids_of(other) == ids_of(another)


@pytest.mark.parametrize("sample", [{"text": "x"}, {"text": "x", "other": 1}])
def test_a_kept_field_must_be_there(tokenizer_path, sample):
    with pytest.raises(tz.DataError, match="row 1 of a block: no field 'id' to keep; the sample has 'text'"):
        run([[{"text": "x", "id": 0}, sample]], tokenizer_path, keep=["id"])
    with pytest.raises(tz.DataError, match="row 0 of a block: no field 'id' to keep"):
        run([sample], tokenizer_path, keep=["id"])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"special_tokens": "both"}, ValueError, "special_tokens must be one of 'eos', 'bos', .*, got 'both'"),
        ({"overflow": "wrap"}, ValueError, "overflow must be one of"),
        ({"backend": "quick"}, ValueError, "backend must be one of 'auto', 'fastokens', 'tokenizers', 'transformers'"),
        ({"on_error": "ignore"}, ValueError, "on_error must be one of"),
        ({"keep": "id"}, TypeError, r"keep must be a sequence of field names, got the string 'id'; write \('id',\)"),
        ({"keep": ["input_ids"]}, ValueError, "keep must not name 'input_ids'"),
        ({"max_length": 5}, ValueError, "max_length=5 contradicts overflow='keep'"),
        ({"overflow": "split"}, ValueError, "max_length=None contradicts overflow='split'"),
        (
            {"max_length": 1, "overflow": "truncate"},
            ValueError,
            "max_length=1 leaves no room for text beside 1 control",
        ),
        ({"max_length": 0, "overflow": "split"}, ValueError, "max_length=0 leaves no room for text"),
        ({"max_length": 2.5, "overflow": "split"}, TypeError, "max_length must be an int, got float"),
    ],
)
def test_arguments_are_checked_where_they_enter(tokenizer_path, options, error, message):
    with pytest.raises(error, match=message):
        tz.TextTokenizer(Source([]), tokenizer_path, **options)


def test_the_source_must_be_a_node(tokenizer_path):
    with pytest.raises(TypeError, match="source must be a node, got list"):
        tz.TextTokenizer([{"text": "x"}], tokenizer_path)


def test_control_tokens_in_the_text(tokenizer_path):
    block = tz.Block({"text": ["a<|begin|>b"]})
    (yes,), (no,) = ids_of(run([block], tokenizer_path)), ids_of(run([block], tokenizer_path, allow_special=False))
    assert 1 in yes
    assert 1 not in no
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_path)
    assert no == [*tokenizer("a<|begin|>b", split_special_tokens=True)["input_ids"], 0]


def test_description(tokenizer_path, tmp_path):
    def describe(tokenizer=tokenizer_path, **options):
        return json.loads(json.dumps(tz.TextTokenizer(Source([]), tokenizer, **options).describe()))

    plain = describe()
    assert plain["backend"].startswith("fastokens ")
    assert {**plain, "tokenizer": "", "backend": ""} == {
        "tokenizer": "",
        "backend": "",
        "field": "text",
        "keep": [],
        "special_tokens": "eos",
        "allow_special": True,
        "max_length": None,
        "overflow": "keep",
    }
    assert describe(on_error="skip") == plain
    assert describe(AutoTokenizer.from_pretrained(tokenizer_path)) == plain
    assert describe(backend="tokenizers")["backend"].startswith("tokenizers ")
    assert describe(special_tokens="none")["tokenizer"] != plain["tokenizer"]
    changed = describe(field="body", keep=("a",), max_length=9, overflow="split", on_error="skip", allow_special=False)
    assert changed["tokenizer"] == plain["tokenizer"]
    assert {name for name in plain if plain[name] == changed[name]} == {"tokenizer", "backend", "special_tokens"}


def test_estimate_and_summary(tokenizer_path):
    node = tz.TextTokenizer(Source([]), tokenizer_path)
    assert node.estimate(None) is None
    assert node.estimate(Estimate(items=2, samples=100, bytes=4000, tokens=0)) == Estimate(2, 100, 4000, 1100)
    assert node.summary().startswith("encoder fastokens ")


def test_copies_share_the_encoder_and_pickles_work(tokenizer_path):
    node = tz.TextTokenizer(Source([{"text": "one two"}]), tokenizer_path)
    lane = copy.deepcopy(node)
    assert lane.encoder is node.encoder
    assert lane.source is not node.source
    again = pickle.loads(pickle.dumps(node))
    for one in (node, lane, again):
        one.reset()
    assert ids_of(node) == ids_of(lane) == ids_of(again)


def test_a_wrong_backend_is_found_and_located(tokenizer_path, monkeypatch):
    node = tz.TextTokenizer(Source([tz.Block({"text": ["one", "two three"]})]), tokenizer_path, on_error="skip")
    node.reset()
    monkeypatch.setattr(shared, "watched_rows", lambda ids: np.array([1]))
    honest = shared.SharedEncoder._encoder

    class Wrong:
        name = "fastokens 9"

        def encode(self, texts):
            ids = honest(node.encoder).encode(texts)
            return tz.Ragged(ids.values + 1, ids.offsets)

    monkeypatch.setattr(shared.SharedEncoder, "_encoder", lambda self: Wrong())
    with pytest.raises(tz.DataError, match=r"row 1 of a block: fastokens .* differently .*backend=\"tokenizers\""):
        next(node)


def test_slow_tokenizers_serve_too(caplog):
    from transformers import ByT5Tokenizer

    caplog.set_level(logging.INFO)
    (got,) = ids_of(run([{"text": "hé"}], ByT5Tokenizer()))
    assert got == ByT5Tokenizer()("hé")["input_ids"]
