"""What a graph of nodes is made of: walking it, and what our nodes tell about themselves."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

from numpy.typing import DTypeLike, NDArray
from torchdata.nodes import BaseNode, ParallelMapper, PinMemory, Prefetcher

from torchzephon.errors import StateError

Empty: TypeAlias = Callable[[tuple[int, ...], DTypeLike], NDArray[Any]]
"""Gives memory for an array of a shape and a dtype, its values undefined, as ``numpy.empty`` does."""


@dataclass(frozen=True)
class Estimate:
    """How much a node will yield over the whole curriculum of all lanes, as far as can be told without reading.

    Attributes:
        items: items that the node yields.
        samples: samples in them.
        bytes: bytes of text or tokens on storage in them.
        tokens: tokens in them.
    """

    items: float
    samples: float
    bytes: float
    tokens: float


@runtime_checkable
class Described(Protocol):
    """A node that names its data-relevant arguments, for the graph description in the state."""

    def describe(self) -> Mapping[str, Any]:
        """Arguments that change the data, JSON values or functions: a state is refused when one of them differs."""
        ...


@runtime_checkable
class Estimated(Protocol):
    """A node that can tell how much it will yield."""

    def estimate(self, source: Estimate | None) -> Estimate | None:
        """From its source's estimate (None for a leaf); None where it cannot be told or is endless."""
        ...


@runtime_checkable
class Blankable(Protocol):
    """A node that can make an item of the usual shape that carries nothing to learn from."""

    def blank(self) -> Any:
        """The blank item."""
        ...


@runtime_checkable
class Summarized(Protocol):
    """A node with something to say in the one log line of the first iteration."""

    def summary(self) -> str:
        """A few words, such as ``"encoder fastokens 0.3.5"``."""
        ...


@runtime_checkable
class Narrowable(Protocol):
    """A node that can yield int32 tensors in the place of int64 ones: half the bytes, for the way between processes."""

    def narrow(self, empty: Empty) -> Collection[str]:
        """Yields int32 from now on, where the values fit. Who takes the items widens them again.

        Args:
            empty: gives the memory for an item's tensors, which lie in it in the order of their keys.

        Returns:
            Keys of the items' tensors that are int64 otherwise. Their values always are, as far as they fit.
        """
        ...


def walk(root: BaseNode[Any]) -> Iterator[BaseNode[Any]]:
    """The nodes of a graph from the root to the leaf, along ``source``."""
    node: Any = root
    while isinstance(node, BaseNode):
        yield node
        node = getattr(node, "source", None)


def reachable(root: BaseNode[Any]) -> list[BaseNode[Any]]:
    """Every node that hangs on ``root`` by any attribute, also inside lists and dicts, each once."""
    found: dict[int, BaseNode[Any]] = {}
    waiting: list[Any] = [root]
    while waiting:
        value = waiting.pop()
        if isinstance(value, BaseNode):
            if id(value) not in found:
                found[id(value)] = value
                waiting.extend(vars(value).values())
        elif isinstance(value, (list, tuple)):
            waiting.extend(part for part in value if isinstance(part, BaseNode))
        elif isinstance(value, dict):
            waiting.extend(part for part in value.values() if isinstance(part, BaseNode))
    return list(found.values())


def check_state(node: BaseNode[Any], state: Mapping[str, Any], *counts: str) -> None:
    """Checks the state of a node that is its source's state and counts, so that a damaged one is named.

    Args:
        node: whose state it is, for the message.
        state: as given to ``reset``.
        counts: keys of integers >= 0.

    Raises:
        StateError: naming the node and what is wrong.
    """
    if missing := sorted({"source", *counts} - set(state)):
        raise StateError(f"{type(node).__name__}: the state lacks {missing}: it has {sorted(state)}")
    for key in counts:
        if type(state[key]) is not int or state[key] < 0:
            raise StateError(f"{type(node).__name__}: {key!r} in the state must be an int >= 0, got {state[key]!r:.80}")


def find_blank(root: BaseNode[Any]) -> Callable[[], Any] | None:
    """How to make a blank item of a graph: its root's ``blank``, through stock nodes that pass items on or map them."""
    if isinstance(root, Blankable):
        return root.blank
    if isinstance(root, (Prefetcher, PinMemory)):
        return find_blank(root.source)
    if isinstance(root, ParallelMapper) and root.prebatch is None:
        blank, function = find_blank(root.source), root.map_fn
        return None if blank is None else lambda: function(blank())
    return None
