"""Finding a tokenizer: places and objects, control tokens, digests, and what cannot be used."""

import json
import pickle
import shutil
import sys

import pytest
from support.tokenizer_zoo import FAMILIES
from tokenizers import Tokenizer

from torchzephon.text.choice import encoder_for
from torchzephon.text.content import Token
from torchzephon.text.load import load_content


@pytest.fixture
def directory(tokenizers_dir, tmp_path):
    """A copy of the gpt2 directory, to be spoiled."""
    return shutil.copytree(tokenizers_dir("gpt2"), tmp_path / "copy")


def edit(file, change):
    value = json.loads(file.read_text())
    file.write_text(json.dumps(change(value) or value))


def digest(tokenizer, special_tokens="eos"):
    return load_content(tokenizer, special_tokens).digest


@pytest.mark.parametrize("family", FAMILIES)
def test_the_digest_is_of_the_content_not_of_the_place(tokenizers_dir, tmp_path, family):
    from transformers import PreTrainedTokenizerFast

    path = tokenizers_dir(family)
    elsewhere = shutil.copytree(path, tmp_path / "elsewhere")
    edit(elsewhere / "tokenizer.json", lambda value: dict(reversed(value.items())))
    handed = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_file(str(path / "tokenizer.json")),
        eos_token="<|endoftext|>",
        bos_token="<|begin|>",
    )
    same = {digest(place) for place in (path, str(path), path / "tokenizer.json", elsewhere, handed)}
    assert len(same) == 1
    bare = Tokenizer.from_file(str(path / "tokenizer.json"))
    assert digest(bare, "none") == digest(path, "none")


def test_the_digest_ignores_how_older_versions_wrote(directory):
    before = digest(directory)

    def old(value):
        value["model"]["merges"] = [" ".join(merge) for merge in value["model"]["merges"]]
        value["model"] = {key: part for key, part in value["model"].items() if part is not None and part is not False}

    edit(directory / "tokenizer.json", old)
    assert digest(directory) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value["model"]["vocab"].update(new=5000),
        lambda value: value["model"]["merges"].pop(),
        lambda value: value["added_tokens"][1].update(special=False),
        lambda value: value.update(normalizer={"type": "NFC"}),
        lambda value: value["pre_tokenizer"].update(add_prefix_space=True),
    ],
)
def test_the_digest_tells_other_content_apart(directory, change):
    before = digest(directory)
    edit(directory / "tokenizer.json", lambda value: change(value) and None)
    assert digest(directory) != before


def test_the_digest_tells_control_tokens_apart(directory):
    modes = ["eos", "bos", "bos_eos", "none"]
    digests = {digest(directory, mode) for mode in modes}
    assert len(digests) == len(modes)
    before = digest(directory)
    edit(directory / "tokenizer_config.json", lambda value: value.update(eos_token="<|begin|>"))
    assert digest(directory) != before
    assert digest(directory) != digest(directory, "bos")  # the same token at the other end


def test_contents_are_equal_by_digest_and_pickle(tokenizer_path):
    one, two = load_content(tokenizer_path, "eos"), load_content(tokenizer_path, "eos")
    assert one == two == pickle.loads(pickle.dumps(one))
    assert len({one, two}) == 1
    assert one != load_content(tokenizer_path, "none")
    assert one != "something else"


@pytest.mark.parametrize("form", ["<|begin|>", {"content": "<|begin|>", "lstrip": False}])
@pytest.mark.parametrize("file", ["tokenizer_config.json", "special_tokens_map.json"])
def test_control_tokens_are_named_in_several_ways(directory, form, file):
    (directory / "tokenizer_config.json").write_text("{}")
    (directory / file).write_text(json.dumps({"eos_token": form, "bos_token": None}))
    content = load_content(directory, "eos")
    assert content.frame.suffix == (Token("<|begin|>", 1),)
    assert encoder_for(content, "tokenizers", allow_special=True).encode([""])[0].tolist() == [1]


def test_tokens_that_only_the_configuration_names_are_added_as_transformers_adds_them(directory):
    from transformers import AutoTokenizer

    edit(directory / "tokenizer.json", lambda value: value.update(added_tokens=[]))
    plain = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
    decoder = {
        "0": {"content": "<|endoftext|>", "special": True, **plain},
        "900": {"content": "<tool>", "special": False, **plain, "lstrip": True},
    }
    edit(directory / "tokenizer_config.json", lambda value: value.update(added_tokens_decoder=decoder))
    texts = ["a<|endoftext|>b", "x  <tool> y", "<|begin|>z", "<tool><|begin|><|endoftext|>"]
    expected = AutoTokenizer.from_pretrained(directory)(texts, add_special_tokens=False)["input_ids"]
    for backend in ("tokenizers", "fastokens"):
        encoder = encoder_for(load_content(directory, "none"), backend, allow_special=True)
        assert [row.tolist() for row in encoder.encode(texts)] == expected


@pytest.mark.parametrize("mode", ["eos", "bos", "bos_eos"])
def test_a_missing_control_token_names_the_ways_out(tokenizer_path, mode):
    bare = Tokenizer.from_file(f"{tokenizer_path}/tokenizer.json")
    with pytest.raises(ValueError, match=r'names no (bos|eos) token.*special_tokens="none".*tokenizer_config.json'):
        load_content(bare, mode)
    assert load_content(bare, "none").frame.suffix == ()


def test_a_named_token_outside_the_vocabulary_is_missing(directory):
    edit(directory / "tokenizer_config.json", lambda value: value.update(eos_token="<nowhere>"))
    with pytest.raises(ValueError, match="names no eos token that is in its vocabulary"):
        load_content(directory, "eos")


def test_slow_tokenizers(tmp_path):
    from transformers import ByT5Tokenizer

    tokenizer = ByT5Tokenizer()
    content = load_content(tokenizer, "eos")
    assert content.json is None
    assert content == load_content(ByT5Tokenizer(), "eos")
    assert content != load_content(ByT5Tokenizer(extra_ids=7), "eos")
    assert content != load_content(tokenizer, "none")
    tokenizer.save_pretrained(tmp_path / "slow")
    encoder = encoder_for(content, "transformers", allow_special=True)
    assert encoder.encode(["hé", ""])[0].tolist() == [*tokenizer("hé", add_special_tokens=False)["input_ids"], 1]
    default = encoder_for(load_content(tokenizer, "tokenizer_default"), "transformers", allow_special=True)
    assert default.encode(["hé"])[0].tolist() == tokenizer("hé")["input_ids"]
    loaded = load_content(tmp_path / "slow", "eos")  # by transformers, which may make a fast one of it
    made = encoder_for(loaded, "transformers", allow_special=True)
    assert made.encode(["hé"])[0].tolist() == encoder.encode(["hé"])[0].tolist()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: (path / "tokenizer.json").write_text("{"), "tokenizer.json is not JSON"),
        (lambda path: (path / "tokenizer.json").write_text("[1]"), "must hold a JSON object, not a list"),
        (lambda path: (path / "tokenizer.json").write_text("{}"), 'has no "model"'),
        (lambda path: (path / "tokenizer_config.json").write_text("nonsense"), "tokenizer_config.json is not JSON"),
        (lambda path: [file.unlink() for file in path.iterdir()], "has no tokenizer.json, and transformers finds"),
        (
            lambda path: edit(path / "tokenizer.json", lambda value: value["model"].update(dropout=0.1)),
            "BPE dropout 0.1, so its ids are random",
        ),
    ],
)
def test_spoiled_directories(directory, spoil, message):
    spoil(directory)
    with pytest.raises(ValueError, match=message):
        load_content(directory, "eos")


@pytest.mark.parametrize("place", ["/no/such/place", "./nowhere", "a/b/c", "", "~/nowhere-at-all"])
def test_places_that_are_not_there(place):
    with pytest.raises(ValueError, match=r"no such file or directory|has no tokenizer.json"):
        load_content(place, "eos")


def test_other_objects_are_refused():
    with pytest.raises(TypeError, match=r"must be a path, a Hub id, .* got int"):
        load_content(3, "eos")


def test_hub_ids_come_from_the_cache_with_the_needed_files_only(directory, monkeypatch):
    import huggingface_hub
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    asked = []

    def hf_hub_download(name, file, local_files_only=False):
        asked.append((name, file, local_files_only))
        if file == "special_tokens_map.json":
            raise (LocalEntryNotFoundError if local_files_only else EntryNotFoundError)("none")
        return str(directory / file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", hf_hub_download)
    assert load_content("someone/small", "eos") == load_content(directory, "eos")
    assert asked == [
        ("someone/small", "tokenizer.json", True),
        ("someone/small", "special_tokens_map.json", True),
        ("someone/small", "special_tokens_map.json", False),
        ("someone/small", "tokenizer_config.json", True),
    ]


def test_hub_without_a_way_there(monkeypatch):
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    def offline(name, file, local_files_only=False):
        raise LocalEntryNotFoundError("offline")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", offline)
    with pytest.raises(ValueError, match=r"'gpt2': .*not in the cache of this machine, and the Hub cannot be reached"):
        load_content("gpt2", "eos")

    def unknown(name, file, local_files_only=False):
        if local_files_only:
            raise LocalEntryNotFoundError("not here")
        raise RuntimeError("401: no such repository")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", unknown)
    with pytest.raises(ValueError, match="cannot be loaded: RuntimeError: 401"):
        load_content("nobody/nothing", "eos")


def test_libraries_that_are_not_installed(monkeypatch, directory):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ValueError, match="pip install huggingface_hub"):
        load_content("gpt2", "eos")
    monkeypatch.setitem(sys.modules, "transformers", None)
    (directory / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match="pip install transformers"):
        load_content(directory, "eos")


def test_a_directory_needs_no_transformers(tokenizer_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    content = load_content(tokenizer_path, "eos")
    assert len(encoder_for(content, "tokenizers", allow_special=True).encode(["a b"])) == 1
