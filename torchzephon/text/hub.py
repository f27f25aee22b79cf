"""A tokenizer's files from the Hugging Face Hub, or from its cache on this machine."""

from __future__ import annotations

from pathlib import Path

from torchzephon.text.files import CONFIGS, PIPELINE


def download(name: str) -> tuple[Path | None, list[Path]]:
    """The files of a tokenizer, and no others of its repository. What is in the cache is not asked for again.

    Returns:
        ``tokenizer.json``, None where the repository has none; and those of its configurations that there are.

    Raises:
        ValueError: where there is no such repository, or no way to it.
    """
    missing = f"tokenizer {name!r}: no such file or directory, and as a Hub id"
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
    except ImportError:
        raise ValueError(f"{missing} it needs huggingface_hub: pip install huggingface_hub") from None

    def fetch(file: str) -> Path:
        try:
            return Path(hf_hub_download(name, file, local_files_only=True))
        except LocalEntryNotFoundError:
            return Path(hf_hub_download(name, file))

    try:
        pipeline: Path | None = fetch(PIPELINE)
    except LocalEntryNotFoundError as error:  # an EntryNotFoundError too, of another meaning
        raise ValueError(
            f"{missing} it is not in the cache of this machine, and the Hub cannot be reached; pass a directory"
        ) from error
    except EntryNotFoundError:
        pipeline = None
    except Exception as error:  # no such repository, no permission, no proxy...
        raise ValueError(f"{missing} it cannot be loaded: {type(error).__name__}: {error}") from error
    configs = []
    for config in CONFIGS:
        try:
            configs.append(fetch(config))
        except EntryNotFoundError:
            continue
    return pipeline, configs
