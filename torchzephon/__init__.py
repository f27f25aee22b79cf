"""Elastic determinism for torchdata.nodes: the same batches on any number of ranks, workers and restarts.

A graph of nodes reads, mixes, tokenizes and packs text: ``MixtureWorkSource``, ``Reader``, ``TextTokenizer``,
``SequencePacker``, ``TrainingBatcher``. ``Lanes`` runs a copy of it for each of a fixed number of lanes, and deals
these out to the ranks that there are; ``Rounds`` yields one training step at a time; ``ElasticDataLoader`` iterates and
checkpoints.

The public names are imported when they are first used, so that ``import torchzephon`` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_MODULES = {
    "Block": "torchzephon.data.block",
    "BufferedNode": "torchzephon.nodes.buffered",
    "DataError": "torchzephon.errors",
    "Dataset": "torchzephon.data.dataset",
    "ElasticDataLoader": "torchzephon.elastic.loader",
    "LaneError": "torchzephon.errors",
    "Lanes": "torchzephon.elastic.lanes",
    "MixtureWorkSource": "torchzephon.nodes.mixture",
    "Ragged": "torchzephon.data.ragged",
    "Reader": "torchzephon.nodes.reader",
    "Rounds": "torchzephon.elastic.rounds",
    "SampleMapper": "torchzephon.nodes.mapper",
    "SequencePacker": "torchzephon.nodes.packer",
    "StateError": "torchzephon.errors",
    "TextTokenizer": "torchzephon.nodes.tokenizer",
    "TrainingBatcher": "torchzephon.nodes.batcher",
    "Work": "torchzephon.curriculum.work",
    "WorkSource": "torchzephon.nodes.work_source",
    "WorkerError": "torchzephon.errors",
    "as_dataset": "torchzephon.elastic.dataset",
    "fit_state": "torchzephon.elastic.fit",
    "gather_state": "torchzephon.elastic.merge",
    "merge_states": "torchzephon.elastic.merge",
}

__all__ = [*_MODULES, "__version__"]

if TYPE_CHECKING:
    from torchzephon.curriculum.work import Work as Work
    from torchzephon.data.block import Block as Block
    from torchzephon.data.dataset import Dataset as Dataset
    from torchzephon.data.ragged import Ragged as Ragged
    from torchzephon.elastic.dataset import as_dataset as as_dataset
    from torchzephon.elastic.fit import fit_state as fit_state
    from torchzephon.elastic.lanes import Lanes as Lanes
    from torchzephon.elastic.loader import ElasticDataLoader as ElasticDataLoader
    from torchzephon.elastic.merge import gather_state as gather_state
    from torchzephon.elastic.merge import merge_states as merge_states
    from torchzephon.elastic.rounds import Rounds as Rounds
    from torchzephon.errors import DataError as DataError
    from torchzephon.errors import LaneError as LaneError
    from torchzephon.errors import StateError as StateError
    from torchzephon.errors import WorkerError as WorkerError
    from torchzephon.nodes.batcher import TrainingBatcher as TrainingBatcher
    from torchzephon.nodes.buffered import BufferedNode as BufferedNode
    from torchzephon.nodes.mapper import SampleMapper as SampleMapper
    from torchzephon.nodes.mixture import MixtureWorkSource as MixtureWorkSource
    from torchzephon.nodes.packer import SequencePacker as SequencePacker
    from torchzephon.nodes.reader import Reader as Reader
    from torchzephon.nodes.tokenizer import TextTokenizer as TextTokenizer
    from torchzephon.nodes.work_source import WorkSource as WorkSource


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
