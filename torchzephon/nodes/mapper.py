"""SampleMapper: a user's function over samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
from torchdata.nodes import BaseNode

from torchzephon.data.block import Block, as_block
from torchzephon.errors import DataError
from torchzephon.nodes.functions import function_name
from torchzephon.nodes.graph import Estimate
from torchzephon.nodes.skips import Skips


class SampleMapper(BaseNode[Block]):
    """Passes every sample through a function that may change it, drop it, or make several of it.

    Yields Blocks that are never empty. The function must be deterministic and must not remember earlier samples:
    after a restart it sees only what comes after the checkpoint, and some samples twice. Its name is part of the
    graph description, so a state is refused by a graph with another function.

    Args:
        source: yields Blocks, sample dicts, or lists of sample dicts.
        fn: takes a sample dict, which it may modify, and returns a dict (the new sample), ``None`` (drop it) or a
            list of dicts (these samples in its place). Must be picklable where workers are spawned.
        on_error: ``"raise"`` stops at a sample for which ``fn`` raises; ``"skip"`` drops such samples, logs the
            1st, 2nd, 4th, 8th... and counts them in the state as ``"skipped"``.

    Raises:
        DataError: from ``next``, when ``fn`` raises and ``on_error="raise"``: names the sample; the cause is chained.
        TypeError: from ``next``, when ``fn`` returns something else.
    """

    passes_blocks = True
    SOURCE_KEY = "source"

    def __init__(
        self,
        source: BaseNode[Any],
        fn: Callable[[dict[str, Any]], Mapping[str, Any] | list[Mapping[str, Any]] | None],
        *,
        on_error: Literal["raise", "skip"] = "raise",
    ) -> None:
        super().__init__()
        if not isinstance(source, BaseNode):
            raise TypeError(f"source must be a node, got {type(source).__name__}")
        if not callable(fn):
            raise TypeError(f"fn must be a function from a sample dict, got {type(fn).__name__}")
        if on_error not in ("raise", "skip"):
            raise ValueError(f'on_error must be "raise" or "skip", got {on_error!r}')
        self.source = source
        self.fn = fn
        self.on_error = on_error
        self._skips = Skips(source)

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Resets the source; the function has no state."""
        super().reset(initial_state)
        self._skips.reset(initial_state)
        self.source.reset(None if initial_state is None else initial_state[self.SOURCE_KEY])

    def next(self) -> Block:
        """The samples that ``fn`` makes of the next block of which it leaves any."""
        while True:
            block = as_block(next(self.source))
            samples: list[Mapping[str, Any]] = []
            rows: list[int] = []  # of each new sample, the row that it was made of
            for row in range(len(block)):
                made = self._apply(block, row)
                samples += made
                rows += [row] * len(made)
            if samples:
                work = None if block.work is None else block.work[np.asarray(rows, np.intp)]
                return Block(Block.from_samples(samples).columns, work, block.datasets, size=len(samples))

    def get_state(self) -> dict[str, Any]:
        """The source's state, and the count of skipped samples when there are any."""
        return {self.SOURCE_KEY: self.source.state_dict(), **self._skips.state()}

    @property
    def skipped(self) -> int:
        """Samples passed over so far in this cycle."""
        return self._skips.count

    def describe(self) -> dict[str, Any]:
        """The function: it is compared by its name, and a changed source under the same name is a warning."""
        return {"fn": self.fn}

    def estimate(self, source: Estimate | None) -> Estimate | None:
        """The source's, as if ``fn`` kept every sample and its length."""
        return source

    def _apply(self, block: Block, row: int) -> list[Mapping[str, Any]]:
        """What ``fn`` makes of one sample."""
        try:
            result: Any = self.fn(block[row])
        except Exception as error:
            failure = f"{function_name(self.fn)} raised {type(error).__name__}: {error} for {block.locate(row)}"
            if self.on_error == "raise":
                raise DataError(
                    f'{failure}; fix the function or the sample, or pass SampleMapper(..., on_error="skip")'
                ) from error
            self._skips.add(failure)
            return []
        if result is None:
            return []
        made: list[Any] = result if isinstance(result, list) else [result]
        for sample in made:
            if not isinstance(sample, Mapping):
                where = "a list with " if made is result else ""
                raise TypeError(
                    f"{function_name(self.fn)} must return a dict, None or a list of dicts, "
                    f"got {where}{type(sample).__name__} for {block.locate(row)}"
                )
        return made
