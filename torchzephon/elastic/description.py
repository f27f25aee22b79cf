"""The readable description of a graph that travels in the state, and what differs between two of them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import orjson
from torchdata.nodes import BaseNode, Batcher, ParallelMapper, PinMemory, Prefetcher, Unbatcher

from torchzephon.elastic.template import find_leaf
from torchzephon.errors import StateError
from torchzephon.nodes.functions import function_name, source_digest
from torchzephon.nodes.graph import Described, walk

NodeDescription = dict[str, Any]

_PASSES_ON = (Prefetcher, PinMemory)  # stock nodes that yield their source's items as they are
_THEN_AND_NOW = "saved {}, now {}"
_ONE_AND_ANOTHER = "one state has {}, another {}"
_NEVER = "a difference in the nodes or the curriculum can never be accepted, since positions would mean other samples"


def describe_graph(root: BaseNode[Any]) -> list[NodeDescription]:
    """The nodes from the leaf to the root, each with its data-relevant arguments, in plain JSON types.

    Left out is what may change between save and load: the batch size of the outermost batcher, and the block size
    (unless a stock node counts rows of blocks, such as ``Unbatcher``).
    """
    nodes = list(walk(root))
    descriptions = [_describe_node(node) for node in nodes]
    for node, description in zip(nodes, descriptions, strict=True):
        if not isinstance(node, _PASSES_ON):
            description.pop("batch_size", None)
            break
    if any(_counts_rows(node) for node in nodes):
        leaf = find_leaf(root)
        descriptions[-1] |= {"block_size": leaf.block_size, "block_bytes": leaf.block_bytes}
    return [_to_plain(description) for description in reversed(descriptions)]


def _to_plain(description: NodeDescription) -> NodeDescription:
    try:
        plain: NodeDescription = orjson.loads(orjson.dumps(description, option=orjson.OPT_SERIALIZE_NUMPY))
    except TypeError as error:
        raise TypeError(f"{description['node']}.describe() must give JSON values and functions: {error}") from error
    return plain


def _describe_node(node: BaseNode[Any]) -> NodeDescription:
    kind = type(node)
    module = "" if kind.__module__.startswith(("torchzephon.", "torchdata.")) else f"{kind.__module__}."
    description: NodeDescription = {"node": f"{module}{kind.__qualname__}"}
    if isinstance(node, Described):
        arguments = dict(node.describe())
    elif isinstance(node, ParallelMapper):
        # With prebatch, the user's function is inside a MapOverBatch.
        arguments = {"map_fn": getattr(node.map_fn, "map_fn", node.map_fn)}
    elif isinstance(node, Batcher):
        arguments = {"batch_size": node.batch_size, "drop_last": node.drop_last}
    else:  # a user's own node: its functions are all that can be told
        arguments = {name: value for name, value in vars(node).items() if _is_function(value)}
    return description | {name: _describe_value(value) for name, value in arguments.items()}


def _is_function(value: Any) -> bool:
    return callable(value) and not isinstance(value, (type, BaseNode))


def _describe_value(value: Any) -> Any:
    if callable(value):
        return {"function": function_name(value), "source": source_digest(value)}
    return value


def _counts_rows(node: BaseNode[Any]) -> bool:
    if isinstance(node, ParallelMapper) and node.prebatch is not None:
        return True
    return isinstance(node, Unbatcher) or getattr(node, "snapshot_frequency", 1) != 1


def find_differences(
    saved: list[NodeDescription], current: list[NodeDescription], wording: str = _THEN_AND_NOW
) -> tuple[dict[str, str], list[str], set[str]]:
    """Compares two descriptions.

    Args:
        saved: the first one.
        current: the other one.
        wording: how both values of an argument are told.

    Returns:
        differences: ``"TextTokenizer.tokenizer"`` -> a sentence with the saved and the current value.
        warnings: sentences on functions whose source has changed.
        fixed: the keys of ``differences`` that lie in the leaf: positions mean something else with another curriculum.
    """
    names = [[node["node"] for node in nodes] for nodes in (saved, current)]
    if names[0] != names[1]:
        return {"nodes": f"nodes: {wording.format(*map(' -> '.join, names))}"}, [], {"nodes"}
    differences, warnings, fixed = {}, [], set()
    for place, (old, new) in enumerate(zip(saved, current, strict=True)):
        for key in dict.fromkeys([*old, *new]):
            a, b = old.get(key), new.get(key)
            if a == b:
                continue
            label = f"{old['node']}.{key}"
            if isinstance(a, dict) and isinstance(b, dict) and "function" in a and a["function"] == b.get("function"):
                warnings.append(f"{label}: the source of {a['function']} has changed since the state was saved")
                continue
            differences[label] = f"{label}: {_contrast(a, b, wording)}"
            if place == 0:
                fixed.add(label)
    return differences, warnings, fixed


def _contrast(saved: Any, current: Any, wording: str) -> str:
    """Names the parts that differ, where both are lists or dicts of the same shape."""
    if isinstance(saved, dict) and isinstance(current, dict):
        parts = [key for key in dict.fromkeys([*saved, *current]) if saved.get(key) != current.get(key)]
        return "; ".join(f"{key}: {_contrast(saved.get(key), current.get(key), wording)}" for key in parts)
    if isinstance(saved, list) and isinstance(current, list) and len(saved) == len(current):
        parts = [i for i, (a, b) in enumerate(zip(saved, current, strict=True)) if a != b]
        return "; ".join(f"[{i}] {_contrast(saved[i], current[i], wording)}" for i in parts)
    return wording.format(repr(saved), repr(current))


def refuse_differences(
    saved: list[NodeDescription], current: list[NodeDescription], accept: Collection[str]
) -> tuple[dict[str, str], list[str]]:
    """Raises when a state is of a graph that would not give the same data.

    Args:
        saved: description in the state.
        current: description of the graph at hand.
        accept: argument names (``"tokenizer"`` or ``"TextTokenizer.tokenizer"``) that may differ.

    Returns:
        The accepted differences, and warnings.

    Raises:
        StateError: naming each difference that is not accepted, saved value and current value.
    """
    differences, warnings, fixed = find_differences(saved, current)
    accepted = {
        label: sentence
        for label, sentence in differences.items()
        if label not in fixed and (label in accept or label.rpartition(".")[2] in accept)
    }
    refused = {label: sentence for label, sentence in differences.items() if label not in accepted}
    if refused:
        lines = "\n  ".join(refused.values())
        raise StateError(
            "the state cannot be loaded: the graph would give other data than the one that saved the state:\n"
            f"  {lines}\n{_way_out(refused, fixed, _argument_names(saved))}"
        )
    return accepted, warnings


def _way_out(refused: Collection[str], fixed: set[str], names: set[str]) -> str:
    """What to do about the refused differences; ``names``: of the arguments that the saved graph had."""
    short = {label: label.rpartition(".")[2] for label in refused if label not in fixed}
    if not short:
        return f"Use the saved values: {_NEVER}"
    quoted = ", ".join(dict.fromkeys(f'"{name if name in names else label}"' for label, name in short.items()))
    return (
        "Use the saved values, or, for a change that you want from here on, accept it by name: "
        f"merge_states([state], accept={{{quoted}}}){'' if fixed.isdisjoint(refused) else f'; {_NEVER}'}"
    )


def refuse_other_graph(one: list[NodeDescription], another: list[NodeDescription]) -> None:
    """Raises when two states are of graphs that would not give the same data: they are not of one run.

    Raises:
        StateError: naming each difference with both values.
    """
    differences, _, _ = find_differences(one, another, _ONE_AND_ANOTHER)
    if differences:
        lines = "\n  ".join(differences.values())
        raise StateError(
            f"the states cannot be merged: their graphs would give different data:\n  {lines}\n"
            "The ranks of a run have one graph: merge the states that they saved at the same step"
        )


def check_accept(accept: Collection[str], nodes: list[NodeDescription]) -> None:
    """Checks the names of arguments that may differ, since a slip would show only when the state is loaded.

    ``"Own.argument"`` may be an argument that the node ``Own`` did not have yet when the state was saved.

    Raises:
        ValueError: naming those that are no arguments of the graph, and those that there are.
    """
    names, owners = _argument_names(nodes), {node["node"] for node in nodes}
    unknown = sorted(name for name in accept if name not in names and name.rpartition(".")[0] not in owners)
    if unknown:
        raise ValueError(
            f"accept names {unknown}, which the graph that saved the state does not have; arguments that can be "
            f"accepted are {sorted(_argument_names(nodes[1:]))}"
        )


def _argument_names(nodes: list[NodeDescription]) -> set[str]:
    return {name for node in nodes for name in node} - {"node"}
