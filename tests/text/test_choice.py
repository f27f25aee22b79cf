"""Which backend serves a tokenizer, and why not another."""

# ruff: noqa: RUF001

import sys

import numpy as np
import orjson
import pytest
from support.tokenizer_zoo import FAMILIES, FAST_FAMILIES

from torchzephon.data.ragged import Ragged
from torchzephon.text import choice
from torchzephon.text.choice import choose_backend, encoder_for, reference_for
from torchzephon.text.content import Content
from torchzephon.text.fast import FastokensEncoder
from torchzephon.text.load import load_content


@pytest.fixture(autouse=True)
def _forget():
    """Choices are made once in a process; here each test makes its own."""
    for cache in (choose_backend, encoder_for):
        cache.cache_clear()
    yield
    for cache in (choose_backend, encoder_for):
        cache.cache_clear()


@pytest.fixture
def content(tokenizer_path):
    return load_content(tokenizer_path, "eos")


@pytest.mark.parametrize("family", FAMILIES)
def test_auto_is_fast_where_that_is_exact(tokenizers_dir, family, caplog):
    chosen = choose_backend(load_content(tokenizers_dir(family), "eos"), "auto", allow_special=True)
    assert chosen == ("fastokens" if family in FAST_FAMILIES else "tokenizers")
    assert ("is encoded by tokenizers, which is slower than fastokens: " in caplog.text) == (
        family not in FAST_FAMILIES
    )


def test_the_probe_knows_control_tokens_as_text(tokenizers_dir):
    """fastokens 0.3.5 makes control tokens of them with pipelines of this kind."""
    content = load_content(tokenizers_dir("llama2"), "eos")
    assert choose_backend(content, "auto", allow_special=True) == "fastokens"
    assert choose_backend(content, "auto", allow_special=False) == "tokenizers"
    with pytest.raises(ValueError, match=r'backend="fastokens" cannot .*: its ids differ for .*; use backend="auto"'):
        choose_backend(content, "fastokens", allow_special=False)


@pytest.mark.parametrize("backend", ["auto", "fastokens", "tokenizers"])
@pytest.mark.parametrize(
    "spoil",
    [
        lambda pipeline: pipeline.update(model={"type": "Nonesuch"}),
        lambda pipeline: pipeline["added_tokens"][0].update(content=None),
    ],
)
def test_what_the_reference_cannot_load_is_told_by_its_name(content, spoil, backend, caplog):
    pipeline = orjson.loads(content.json)
    spoil(pipeline)
    broken = Content.from_pipeline("broken", pipeline, None, None, "none")
    with pytest.raises(ValueError, match=r"cannot load its tokenizer\.json"):
        choose_backend(broken, backend, allow_special=True)
    assert not caplog.records  # nor is it said to be slow


def doctor(monkeypatch, change):
    """fastokens that gives other ids for texts that ``change`` picks."""
    honest = FastokensEncoder.encode

    def encode(self, texts):
        rows = [row + 1 if change(text) else row for text, row in zip(texts, honest(self, texts), strict=True)]
        return Ragged.from_rows(rows, np.int32)

    monkeypatch.setattr(FastokensEncoder, "encode", encode)


@pytest.mark.parametrize("piece", ["한", "\x00", "\u0301", "🤷", "१", "\r\n", "'ſ", "1234", "<|begin|>", "   "])
def test_the_probe_finds_a_doctored_backend(content, monkeypatch, piece):
    doctor(monkeypatch, lambda text: piece in text)
    assert choose_backend(content, "auto", allow_special=True) == "tokenizers"


def test_the_probe_finds_what_depends_on_earlier_texts(content, monkeypatch):
    seen = set()

    def remembers(text):
        known = text[:3000] in seen and len(text) > 3000
        seen.add(text[:3000])
        return known

    doctor(monkeypatch, remembers)
    assert choose_backend(content, "auto", allow_special=True) == "tokenizers"


def test_without_fastokens(content, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "fastokens", None)
    assert choose_backend(content, "auto", allow_special=True) == "tokenizers"
    assert "fastokens is not installed" in caplog.text
    with pytest.raises(ValueError, match=r'backend="fastokens" cannot serve tokenizer .*: fastokens is not installed'):
        choose_backend(content, "fastokens", allow_special=True)


def test_named_backends(content):
    for backend in ("fastokens", "tokenizers", "transformers"):
        assert choose_backend(content, backend, allow_special=True) == backend
        assert encoder_for(content, backend, allow_special=True).name.startswith(f"{backend} ")


def test_slow_tokenizers_have_one_backend():
    from transformers import ByT5Tokenizer

    content = load_content(ByT5Tokenizer(), "eos")
    assert choose_backend(content, "auto", allow_special=True) == "transformers"
    assert reference_for(content, allow_special=True).name.startswith("transformers")
    for backend in ("fastokens", "tokenizers"):
        with pytest.raises(ValueError, match=f'backend="{backend}" cannot .*: it has no tokenizer.json'):
            choose_backend(content, backend, allow_special=True)


def test_a_pipeline_that_tokenizers_does_not_know(content):
    odd = type(content)(content.name, content.json.replace("ByteLevel", "WordLevels"), None, content.frame, "odd")
    with pytest.raises(ValueError, match=r"cannot serve .*: tokenizers .* cannot load its tokenizer.json"):
        choose_backend(odd, "tokenizers", allow_special=True)


def test_a_choice_is_made_once(content, tokenizer_path, monkeypatch):
    assert choose_backend(content, "auto", allow_special=True) == "fastokens"
    monkeypatch.setattr(choice, "probe_texts", None)
    assert choose_backend(load_content(tokenizer_path, "eos"), "auto", allow_special=True) == "fastokens"
    same = [encoder_for(load_content(tokenizer_path, "eos"), "fastokens", allow_special=True) for _ in range(2)]
    assert same[0] is same[1]
