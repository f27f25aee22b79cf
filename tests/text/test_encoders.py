"""Every backend gives the ids of the reference tokenizer, for every text."""

# ruff: noqa: RUF001

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tokenizer_zoo import FAMILIES, O200K, byte_level, generated_texts, save, split_on

from torchzephon.text.choice import choose_backend, encoder_for
from torchzephon.text.load import load_content

EXACT = settings(deadline=None, max_examples=30)
PIECES = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    st.sampled_from(
        [
            *generated_texts(12, seed=5, longest=6),
            "<|endoftext|>",
            "<|begin|>",
            "<|endof",
            "<tool>",
            "<unk>",
            "'ſ",
            "あ'ſ",
        ]
    ),
    st.text("aAsS'’ſtl \n\t1é\u0301あ👋\u200d\x00", max_size=10),
)
TEXTS = st.lists(st.lists(PIECES, max_size=4).map("".join), max_size=6)


@pytest.fixture(scope="session")
def transformers_tokenizer(tokenizers_dir):
    """What a user of transformers would get from the same directory."""
    from transformers import AutoTokenizer

    made = {}

    def load(family):
        if family not in made:
            made[family] = AutoTokenizer.from_pretrained(tokenizers_dir(family))
        return made[family]

    return load


def expected_ids(tokenizer, texts, mode, allow_special):
    def ids(text):
        default = mode == "tokenizer_default"
        ids = tokenizer(text, add_special_tokens=default, split_special_tokens=not allow_special)["input_ids"]
        if default:
            return ids
        bos = [tokenizer.bos_token_id] if "bos" in mode else []
        return bos + ids + ([tokenizer.eos_token_id] if "eos" in mode else [])

    return [ids(text) for text in texts]


def check(encoder, texts, expected):
    got = encoder.encode(texts)
    assert got.values.dtype == np.int32
    assert got.offsets.dtype == np.int64
    assert [row.tolist() for row in got] == expected


@pytest.mark.parametrize("allow_special", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_ids_are_those_of_transformers(tokenizers_dir, transformers_tokenizer, family, allow_special):
    modes = ["eos", "bos", "bos_eos", "none", "tokenizer_default"]
    contents = {mode: load_content(tokenizers_dir(family), mode) for mode in modes}
    backends = {"tokenizers", "transformers", choose_backend(contents["eos"], "auto", allow_special=allow_special)}

    @EXACT
    @given(TEXTS, st.sampled_from(modes))
    def run(texts, mode):
        expected = expected_ids(transformers_tokenizer(family), texts, mode, allow_special)
        for backend in backends:
            check(encoder_for(contents[mode], backend, allow_special=allow_special), texts, expected)

    run()


@pytest.mark.parametrize("backend", ["fastokens", "tokenizers", "transformers"])
def test_no_texts_and_empty_texts(tokenizer_path, backend):
    content = load_content(tokenizer_path, "bos_eos")
    encoder = encoder_for(content, backend, allow_special=True)
    check(encoder, [], [])
    check(encoder, ["", ""], [[1, 0], [1, 0]])


@pytest.mark.parametrize("backend", ["fastokens", "tokenizers", "transformers"])
@pytest.mark.parametrize("texts", [["fine", "a\ud800b"], ["\udfff"]])
def test_lone_surrogates_have_one_name(tokenizer_path, backend, texts):
    encoder = encoder_for(load_content(tokenizer_path, "eos"), backend, allow_special=True)
    with pytest.raises(UnicodeEncodeError):
        encoder.encode(texts)


@pytest.mark.parametrize("backend", ["fastokens", "tokenizers", "transformers"])
@pytest.mark.parametrize("value", [None, b"bytes", ("a", "pair"), ["a", "pair"], 7])
def test_what_is_not_a_text_is_refused(tokenizer_path, backend, value):
    encoder = encoder_for(load_content(tokenizer_path, "eos"), backend, allow_special=True)
    with pytest.raises(TypeError):
        encoder.encode(["fine", value])


@pytest.mark.parametrize("backend", ["fastokens", "tokenizers"])
def test_long_documents(tokenizer_path, transformers_tokenizer, backend):
    encoder = encoder_for(load_content(tokenizer_path, "eos"), backend, allow_special=True)
    long = "".join(generated_texts(700, seed=9))
    texts = [long, " " * 20_000, "x" * 5_000, long[: len(long) // 2] + "<|endoftext|>\n" + long]
    check(encoder, texts, expected_ids(transformers_tokenizer("gpt2"), texts, "eos", allow_special=True))


def test_ids_do_not_depend_on_what_was_encoded_before(tokenizers_dir):
    """Versions of fastokens before 0.3.5 reused the matches of an earlier text beyond the common beginning."""
    for family in ("gpt2", "llama3"):
        content = load_content(tokenizers_dir(family), "eos")
        fast = encoder_for(content, "fastokens", allow_special=True)
        reference = encoder_for(content, "tokenizers", allow_special=True)
        start = "".join(generated_texts(30, seed=3))
        for spaces in (" " * 700, "\n" * 30, "1" * 9, "don'"):
            for end in ("x" + start, " ", "\n", "\tx", "y", "", "  z", "\n\nk", "t"):
                text = start + spaces + end
                assert fast.encode([text])[0].tolist() == reference.encode([text])[0].tolist()


def test_texts_that_fastokens_encodes_differently_go_to_the_reference(tmp_path):
    """The one known difference needs a pattern with contractions at the end of words, and merges over "あ'"."""
    tokenizer = byte_level(split_on(O200K))
    merged = ["é'ſ", "あ'ſ", "q é'ſ a"] * 50
    from tokenizers import trainers

    tokenizer.train_from_iterator(
        generated_texts(50) + merged,
        trainers.BpeTrainer(
            vocab_size=900, special_tokens=["<|endoftext|>"], initial_alphabet=list("é"), show_progress=False
        ),
    )
    content = load_content(save(tokenizer, tmp_path / "o200k", eos_token="<|endoftext|>"), "eos")
    fast = encoder_for(content, "fastokens", allow_special=True)
    reference = encoder_for(content, "tokenizers", allow_special=True)
    texts = ["plain", "é'ſ", "あ'ſ and 'S", "", "ſ alone"]
    assert [row.tolist() for row in fast.encode(texts)] == [row.tolist() for row in reference.encode(texts)]


def test_truncation_and_padding_of_the_file_are_not_used(tokenizers_dir, tmp_path):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizers_dir("gpt2") / "tokenizer.json"))
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=50)
    path = save(tokenizer, tmp_path / "cut", eos_token="<|endoftext|>")
    plain, cut = (load_content(place, "eos") for place in (tokenizers_dir("gpt2"), path))
    assert cut.digest == plain.digest
    for backend in ("fastokens", "tokenizers", "transformers"):
        encoders = [encoder_for(content, backend, allow_special=True) for content in (cut, plain)]
        short, whole = (encoder.encode(["a b c d e f g", "a"]).lengths.tolist() for encoder in encoders)
        assert short == whole
        assert whole[0] > 3
