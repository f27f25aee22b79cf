"""The watch: which documents are checked, and what a difference says."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tokenizer_zoo import generated_texts

from torchzephon.data.ragged import Ragged
from torchzephon.errors import DataError
from torchzephon.text import shared
from torchzephon.text.fast import FastokensEncoder
from torchzephon.text.load import load_content
from torchzephon.text.shared import SharedEncoder
from torchzephon.text.watch import first_difference, watched_rows


@pytest.fixture
def encoder(tokenizer_path):
    return SharedEncoder(load_content(tokenizer_path, "eos"), backend="auto", allow_special=True)


def place(row):
    return f"row {row} of somewhere"


def test_about_one_in_4096_is_watched():
    rng = np.random.default_rng(0)
    for longest in (3, 40, 1000):
        rows = [rng.integers(0, 32000, rng.integers(2, longest)) for _ in range(20_000)]
        assert 0 < len(watched_rows(Ragged.from_rows(rows, np.int32))) < 20


def test_documents_of_one_length_are_watched_too():
    ids = np.random.default_rng(1).integers(0, 32000, 4096 * 16 * 8).astype(np.int32)
    assert 4 < len(watched_rows(Ragged(ids, np.arange(4096 * 16 + 1) * 8))) < 40


def test_empty_documents_are_not_watched():
    assert watched_rows(Ragged.from_rows([[], []], np.int32)).tolist() == []
    assert watched_rows(Ragged.from_rows([], np.int32)).tolist() == []


def test_the_choice_does_not_depend_on_the_block():
    rng = np.random.default_rng(2)
    rows = [rng.integers(0, 900, rng.integers(0, 9)) for _ in range(50_000)]
    whole = Ragged.from_rows(rows, np.int32)
    parts = [start + watched_rows(whole[start : start + 7]) for start in range(0, len(rows), 7)]
    assert np.concatenate(parts).tolist() == watched_rows(whole).tolist() != []


@settings(deadline=None)
@given(st.lists(st.integers(0, 2), max_size=9), st.lists(st.integers(0, 2), max_size=9))
def test_first_difference(one, two):
    at = first_difference(np.array(one, np.int32), np.array(two, np.int32))
    if at is None:
        assert one == two
    else:
        assert one[:at] == two[:at]
        assert one[at : at + 1] != two[at : at + 1]


def watch_all(monkeypatch):
    monkeypatch.setattr(shared, "watched_rows", lambda ids: np.arange(len(ids)))


def doctor(monkeypatch, change):
    honest = FastokensEncoder.encode
    monkeypatch.setattr(
        FastokensEncoder, "encode", lambda self, texts: Ragged.from_rows([change(row) for row in honest(self, texts)])
    )


def test_an_honest_backend_passes(encoder, monkeypatch):
    watch_all(monkeypatch)
    texts = [*generated_texts(30), "", "é" * 70_000, "word " * 20_000]
    assert len(encoder.encode(texts, place)) == len(texts)


def test_a_difference_is_raised_with_the_text_and_the_way_out(encoder, monkeypatch):
    watch_all(monkeypatch)
    good = encoder.encode(["the quick brown fox"], place)[0].tolist()
    doctor(monkeypatch, lambda row: np.where(np.arange(len(row)) == 3, 99, row).astype(np.int32))
    with pytest.raises(DataError) as caught:
        encoder.encode(["", "the quick brown fox"], place)
    message = str(caught.value)
    assert message.startswith("row 1 of somewhere: fastokens ")
    assert "from token 3 on: " in message
    assert str(good[:8]) in message
    assert str([*good[:3], 99, *good[4:8]]) in message
    assert "quick brown" in message
    assert 'backend="tokenizers"' in message


@pytest.mark.parametrize("change", [lambda row: row[:-1], lambda row: np.append(row, row[-1:])])
def test_a_difference_in_length_is_one(encoder, monkeypatch, change):
    watch_all(monkeypatch)
    doctor(monkeypatch, change)
    with pytest.raises(DataError, match="differently"):
        encoder.encode(["the quick brown fox"], place)


def test_long_documents_are_watched_at_their_beginning(encoder, monkeypatch):
    watch_all(monkeypatch)
    text = "the quick brown fox " * 8000
    doctor(monkeypatch, lambda row: np.where(np.arange(len(row)) == 1000, 99, row).astype(np.int32))
    with pytest.raises(DataError, match="from token 1000 on"):
        encoder.encode([text], place)


def test_the_reference_is_not_watched(tokenizer_path, monkeypatch):
    monkeypatch.setattr(shared, "watched_rows", None)
    encoder = SharedEncoder(load_content(tokenizer_path, "eos"), backend="tokenizers", allow_special=True)
    assert len(encoder.encode(["a"], place)) == 1


def test_it_is_shared_by_copies_and_small_to_pickle(encoder):
    assert copy.deepcopy({"lanes": [encoder, encoder]})["lanes"] == [encoder, encoder]
    again = pickle.loads(pickle.dumps(encoder))
    assert again.name == encoder.name
    assert again.encode(["a b"], place)[0].tolist() == encoder.encode(["a b"], place)[0].tolist()
    assert len(pickle.dumps(encoder)) < 2 * len(encoder.content.json)


@pytest.mark.parametrize("family", ["gpt2", "llama3", "wordpiece"])
def test_frame_lengths(tokenizers_dir, family):
    lengths = {"eos": (0, 1), "bos": (1, 0), "bos_eos": (1, 1), "none": (0, 0)}
    lengths["tokenizer_default"] = {"gpt2": (0, 0), "llama3": (1, 0), "wordpiece": (1, 1)}[family]
    for mode, expected in lengths.items():
        content = load_content(tokenizers_dir(family), mode)
        assert SharedEncoder(content, backend="tokenizers", allow_special=True).frame_lengths() == expected


def test_a_default_frame_that_cannot_be_told(tokenizers_dir):
    from tokenizers import Tokenizer, processors

    tokenizer = Tokenizer.from_file(str(tokenizers_dir("gpt2") / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <|begin|> $A", pair="$A $B", special_tokens=[("<|begin|>", 1)]
    )
    content = load_content(tokenizer, "tokenizer_default")
    encoder = SharedEncoder(content, backend="tokenizers", allow_special=True)
    with pytest.raises(ValueError, match="does more than to put the same tokens around every text"):
        encoder.frame_lengths()
