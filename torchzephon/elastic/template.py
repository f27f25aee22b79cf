"""The template graph of the lanes: checking it, and copying it once per lane."""

from __future__ import annotations

import copy
import importlib
import io
import pickle
import types
from collections.abc import Callable
from multiprocessing.context import BaseContext
from typing import Any, TypeAlias

from torchdata.nodes import BaseNode, ParallelMapper

from torchzephon.nodes.graph import reachable, walk
from torchzephon.nodes.work_source import WorkSource

Root: TypeAlias = "BaseNode[Any] | Callable[[], BaseNode[Any]]"

_REFUSED = {  # nodes that keep tensors, generators or contents in their state, or lanes of their own
    "MultiNodeWeightedSampler": "mix the datasets in one MixtureWorkSource",
    "Lanes": "put one Lanes at the top",
    "Shuffler": "shuffle with MixtureWorkSource(shuffle_within_shard=True) or shuffle_block_size",
}


def build_template(root: Root) -> BaseNode[Any]:
    """The graph that stands for all lanes.

    Args:
        root: the graph, or a function that builds it.

    Raises:
        TypeError: when it is neither, or holds a node that cannot be elastic.
        ValueError: when it was iterated already, or maps in no fixed order.
    """
    template = root if isinstance(root, BaseNode) else root() if callable(root) else root
    if not isinstance(template, BaseNode):
        raise TypeError(
            "Lanes needs the root node of a torchdata graph, or a function that builds one, "
            f"got {type(template).__name__}"
        )
    for node in reachable(template):
        name = type(node).__name__
        if isinstance(node, ParallelMapper) and not node.in_order:
            raise ValueError(
                "ParallelMapper(in_order=False) stands in the graph: its order is another one every time, and nothing "
                "could be resumed. Use in_order=True"
            )
        if name in _REFUSED and type(node).__module__.startswith(("torchdata.", "torchzephon.")):
            raise TypeError(f"{name} cannot stand in a lane. Instead, {_REFUSED[name]}")
        if getattr(node, "_BaseNode__initialized", False):
            raise ValueError(
                f"the graph was iterated already ({name} is past its reset): its copies would not begin at the "
                "beginning. Build a fresh graph for Lanes"
            )
    return template


def refuse_processes(template: BaseNode[Any]) -> None:
    """Checks that a graph can run in a worker process of a loader.

    Raises:
        ValueError: when a node starts processes of its own, which a worker process may not.
    """
    for node in reachable(template):
        if isinstance(node, ParallelMapper) and node.method == "process" and node.num_workers:
            raise ValueError(
                "ParallelMapper(method='process') stands in the graph: a worker process cannot start processes of its "
                "own. Use method='thread', or num_workers=0 for the loader"
            )


def find_leaf(root: BaseNode[Any]) -> WorkSource:
    """The lane-aware leaf of a graph.

    Raises:
        ValueError: when the graph has two leaves.
        TypeError: when its leaf is not lane-aware, or cannot be found.
    """
    *_, leaf = walk(root)
    leaves = [node for node in reachable(root) if isinstance(node, WorkSource)]
    if len(leaves) > 1:
        names = ", ".join(type(node).__name__ for node in leaves)
        raise ValueError(
            f"the graph has more than one leaf ({names}); a lane reads one stream: mix the datasets in one "
            "MixtureWorkSource instead of mixing nodes"
        )
    if leaves and leaf is not leaves[0]:
        raise TypeError(
            f"{type(leaf).__name__} has no attribute 'source' with the node that it reads from, as torchdata's nodes "
            f"have: the way to {type(leaves[0]).__name__} cannot be found"
        )
    if not isinstance(leaf, WorkSource):
        raise TypeError(
            f"the leaf of the graph, {type(leaf).__name__}, is not lane-aware: every lane would read the same data. "
            "Start the graph with MixtureWorkSource, or derive a leaf of your own from torchzephon.WorkSource"
        )
    return leaf


def copy_graph(root: BaseNode[Any]) -> BaseNode[Any]:
    """A deep copy of a graph for one lane.

    Stock ``Mapper`` and ``ParallelMapper`` keep a module (``torch.multiprocessing``) or a multiprocessing context,
    which cannot be copied: those are shared.

    Raises:
        TypeError: when a node cannot be copied, with the way out.
    """
    memo: dict[int, Any] = {}
    for node in reachable(root):
        for value in vars(node).values():
            if isinstance(value, (types.ModuleType, BaseContext)):
                memo[id(value)] = value
    try:
        return copy.deepcopy(root, memo)
    except Exception as error:
        raise TypeError(
            f"the graph cannot be copied for each lane ({type(error).__name__}: {error}); "
            "pass Lanes a function that builds the graph, instead of the graph"
        ) from error


def make_graph(root: Root) -> BaseNode[Any]:
    """A graph for one lane, from the template or from the function that builds it.

    Raises:
        TypeError: see :func:`copy_graph`.
        ValueError: when the function gives the same leaf twice: lanes would read from under each other.
    """
    if isinstance(root, BaseNode):
        return copy_graph(root)
    graph = root()
    if find_leaf(graph).lane is not None:
        raise ValueError(
            "the function that builds the graph gave the same one again, or one with the same leaf: it must build a "
            "new graph, from the leaf on, each time it is called"
        )
    return graph


def dump_root(root: Root) -> bytes:
    """Pickles a graph or its builder for a spawned worker process; modules that stock nodes keep go by name.

    Raises:
        TypeError: when it holds something that cannot be pickled, with the way out.
    """
    buffer = io.BytesIO()
    try:
        _Pickler(buffer).dump(root)
    except Exception as error:
        raise TypeError(
            f"the graph cannot be sent to a worker process ({type(error).__name__}: {error}); use functions that can "
            "be imported instead of lambdas, pass Lanes a function that builds the graph, or use the 'fork' context"
        ) from error
    return buffer.getvalue()


def load_root(data: bytes) -> Root:
    """The graph or builder that :func:`dump_root` pickled."""
    root: Root = pickle.loads(data)
    return root


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, types.ModuleType):
            return importlib.import_module, (value.__name__,)
        return NotImplemented
