"""What all tests share."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def cache_root(tmp_path_factory):
    """Indexes and copies go to a directory of the test run, in this process and its children."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHZEPHON_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def tokenizers_dir(tmp_path_factory):
    """A directory with a tokenizer directory of each family in ``support.tokenizer_zoo``, made when first asked for."""
    from support.tokenizer_zoo import FAMILIES, save

    root = tmp_path_factory.mktemp("tokenizers")

    def find(family):
        if not (root / family).is_dir():
            save(FAMILIES[family](), root / family, eos_token="<|endoftext|>", bos_token="<|begin|>")
        return root / family

    return find


@pytest.fixture(scope="session")
def tokenizer_path(tokenizers_dir):
    """A small byte-level BPE tokenizer with end-of-text and begin tokens, as a Hugging Face directory."""
    return str(tokenizers_dir("gpt2"))
