"""ElasticDataLoader: what a training loop iterates over."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Generic, TypeVar

import torch
from torchdata.nodes import BaseNode

from torchzephon.curriculum.checks import check_int
from torchzephon.elastic.lanes import Lanes
from torchzephon.elastic.rounds import Rounds
from torchzephon.elastic.template import refuse_processes
from torchzephon.elastic.workers import WorkerSupply
from torchzephon.elastic.wrappers import find_state

logger = logging.getLogger(__name__)

T = TypeVar("T")
_FIXED = {
    "batch_sampler",
    "batch_size",
    "collate_fn",
    "dataset",
    "drop_last",
    "in_order",
    "sampler",
    "shuffle",
    "snapshot_every_n_steps",
}
_OPTIONS = {
    "generator",
    "multiprocessing_context",
    "persistent_workers",
    "prefetch_factor",
    "timeout",
    "worker_init_fn",
}


class ElasticDataLoader(Generic[T]):
    """Iterates over lanes or rounds, in this process or with worker processes, and checkpoints elastically.

    The state does not depend on the number of workers or ranks: any state of the same run loads, and
    ``state_dict()`` of a loader that was not started yet is a template of its lanes' keys that starts nothing. So
    the loader itself goes into ``torch.distributed.checkpoint``::

        dcp.save({"model": ..., "data": loader}, checkpoint_id=path)
        dcp.load({"model": ..., "data": loader}, checkpoint_id=path)

    It is not a ``DataLoader`` itself, because Accelerate and Lightning re-shard every DataLoader they are handed.

    Args:
        lanes_or_rounds: a :class:`~torchzephon.Lanes` or :class:`~torchzephon.Rounds`.
        num_workers: worker processes; 0: batches are made in this process, by the threads of ``Lanes``. Each worker
            owns a contiguous run of this rank's lanes; workers beyond the number of lanes are not started.
        pin_memory: put batches into page-locked memory, from which ``tensor.to(device, non_blocking=True)`` need not
            wait. Without CUDA it only logs a warning.
        **options: of ``StatefulDataLoader``: ``multiprocessing_context``, ``prefetch_factor`` (rounds,
            4 by default), ``persistent_workers``, ``timeout``, ``worker_init_fn``, ``generator``.

    Raises:
        TypeError: for another kind of node, or an option that makes no sense here.
        ValueError: for a negative ``num_workers``, or workers for a graph that starts processes of its own.
    """

    def __init__(
        self, lanes_or_rounds: BaseNode[T], num_workers: int = 0, *, pin_memory: bool = False, **options: Any
    ) -> None:
        if not isinstance(lanes_or_rounds, (Lanes, Rounds)):
            raise TypeError(f"ElasticDataLoader needs a Lanes or a Rounds, got {type(lanes_or_rounds).__name__}")
        check_int("num_workers", num_workers, at_least=0)
        if refused := _FIXED & set(options):
            raise TypeError(f"{sorted(refused)} cannot be given: the graph decides what a batch is and in what order")
        if unknown := set(options) - _OPTIONS:
            raise TypeError(f"unknown options {sorted(unknown)}; those of worker processes are {sorted(_OPTIONS)}")
        if num_workers == 0 and options:
            raise TypeError(f"{sorted(options)} are options of worker processes, and num_workers is 0")
        self.node: BaseNode[T] = lanes_or_rounds
        self.lanes = lanes_or_rounds.source if isinstance(lanes_or_rounds, Rounds) else lanes_or_rounds
        self.num_workers = num_workers
        self.lanes.pin_memory = pin_memory and torch.cuda.is_available()
        if pin_memory and not self.lanes.pin_memory:
            logger.warning("pin_memory=True has no effect: there is no CUDA device")
        self._supply: WorkerSupply | None = None
        if options.get("prefetch_factor") is None:
            options.pop("prefetch_factor", None)
        else:
            check_int("prefetch_factor", options["prefetch_factor"], at_least=1)
        if num_workers:
            refuse_processes(self.lanes.template)
            self._supply = WorkerSupply(
                self.lanes.make_pump(num_threads=0),
                min(num_workers, len(self.lanes.owned)),  # more would idle
                options,
            )
            self.lanes.use_supply(self._supply)
        else:
            self.lanes.use_supply(self.lanes.make_pump(self.lanes.num_threads))
        self._positioned = True  # the node stands where the next iteration is to begin
        self._iteration = 0

    def __iter__(self) -> Iterator[T]:
        """Goes on from the loaded state; else from the start of the cycle, or of the next one after its end."""
        if not self._positioned:
            self.node.reset(None)
        self._positioned = False
        self._iteration += 1
        return _Iteration(self, self._iteration)

    def state_dict(self) -> dict[str, Any]:
        """The state after the last batch (or round) that was given out. Starts nothing, takes no lock."""
        return self.lanes.get_state()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continues from a state with the next ``iter()``; it may come from any number of ranks and workers.

        Raises:
            StateError: when it cannot be continued here, naming each reason.
        """
        self.node.reset(dict(find_state(state_dict)))
        self._positioned = True
        self._iteration += 1

    def close(self) -> None:
        """Stops threads and worker processes."""
        self.lanes.close()
        if self._supply is not None:
            self._supply.shut_down()

    def __enter__(self) -> ElasticDataLoader[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Iteration(Iterator[T]):
    def __init__(self, loader: ElasticDataLoader[T], number: int) -> None:
        self._loader = loader
        self._number = number

    def __del__(self) -> None:
        # A loop was left early: nobody can go on with it, so nothing runs ahead and no other rank waits for this one.
        if self._number == self._loader._iteration:
            self._loader.lanes.close()

    def __next__(self) -> T:
        if self._number != self._loader._iteration:
            raise RuntimeError("the loader was iterated anew or loaded a state since: this iterator is over")
        item: T = next(self._loader.node)
        return item
