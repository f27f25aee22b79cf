"""Whether a state can be continued here."""

from __future__ import annotations

import logging

from torchzephon.elastic.description import refuse_differences
from torchzephon.elastic.state import Graph, State
from torchzephon.errors import StateError

logger = logging.getLogger(__name__)


def check_loadable(state: State, graph: Graph, num_lanes: int, owned: range, *, pads: bool) -> Graph:
    """Checks a state against this run, and logs what was accepted and what is doubtful.

    Args:
        state: to be loaded.
        graph: this run's.
        num_lanes: this run's.
        owned: the lanes of this rank.
        pads: whether lanes may stand in the middle of a round: ranks need not keep in step, or blank batches can be
            made.

    Returns:
        This run's graph, with the history that the state brings.

    Raises:
        StateError: naming each reason why it cannot be continued.
    """
    if state.num_lanes != num_lanes:
        raise StateError(
            f"the state has {state.num_lanes} lanes, this run num_lanes={num_lanes}: the number of lanes is "
            f"fixed for the whole run; use num_lanes={state.num_lanes}"
        )
    accepted, warnings = refuse_differences(state.graph.nodes, graph.nodes, state.graph.accept)
    if missing := [lane for lane in owned if lane not in state.lanes]:
        raise StateError(
            f"the state lacks lanes {missing} of this rank's {owned[0]}-{owned[-1]} (it has "
            f"{sorted(state.lanes)}): a rank's state holds its own lanes only. Load all ranks' states together: "
            "merge_states([...]), gather_state(loader), or torch.distributed.checkpoint"
        )
    states = {lane: state.lane(lane) for lane in state.lanes}
    if len(cycles := {lane.cycle for lane in states.values()}) > 1:
        raise StateError(f"the lanes are in different cycles {sorted(cycles)}: the ranks saved at different times")
    ahead = [lane for lane in owned if not states[lane].dry and states[lane].given > state.round]
    if ahead and not pads:
        raise StateError(
            f"the state was saved in the middle of a round (lanes {ahead} are ahead), and the root node has no "
            "blank() to keep the ranks in step: save between rounds, or use uneven='allow'"
        )
    for warning in warnings:
        logger.warning("%s", warning)
    history = state.graph.history
    if accepted:
        history = [*history, {"round": state.round, "changes": sorted(accepted.values())}]
        logger.warning("accepted differences: %s", "; ".join(sorted(accepted.values())))
    return Graph(graph.nodes, history=history)
