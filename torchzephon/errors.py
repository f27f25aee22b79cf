"""The errors that torchzephon raises on purpose. Each message says what is wrong, where, and what to do."""

from __future__ import annotations


class DataError(ValueError):
    """Data on storage, or a sample, that cannot be used: names the dataset, the file and the row.

    Attributes:
        row: where one row alone is bad, its index into the ``rows`` that were asked for: the reader can go on
            without it. None where the file as a whole is.
    """

    def __init__(self, message: str, *, row: int | None = None) -> None:
        super().__init__(message)
        self.row = row


class StateError(ValueError):
    """A state dict that must not be loaded or merged: names each difference, saved value and current value."""


class LaneError(RuntimeError):
    """An exception inside a lane: names the lane, the node and the samples; ``__cause__`` is the original.

    It is built from one string so that it survives the trip out of a worker process.
    """


class WorkerError(RuntimeError):
    """A worker process that died: names the worker, its lanes and its exit code or signal."""
