"""What the demo shows: a table and a picture."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from elastic.journal import Step, same


@dataclass(frozen=True)
class Phase:
    """One launch of the interrupted job.

    Attributes:
        ranks: how many processes.
        from_step: the step of the checkpoint that it went on from, 0 for a new start.
        steps: what it did; a kill may undo the last of them.
        killed: how many processes SIGKILL hit in the end; 0 when it came to its end.
    """

    ranks: int
    from_step: int
    steps: list[Step]
    killed: int


def print_table(whole: dict[int, Step], phases: list[Phase], naive: dict[int, Step], naive_phases: list[Phase]) -> None:
    """The interrupted job in order of time, each step beside the same step of the job that was not interrupted."""
    print(f"{'':29}torchzephon{'':23}a naive loader")
    print(f"{'step':>5} {'ranks':>6}   {'global batch':<17} {'loss':<15} {'same?':<7}  {'global batch':<17} same?")
    for phase, naive_phase in zip(phases, naive_phases, strict=True):
        if phase.from_step:
            print(dim(f"{'':7}back on {phase.ranks} ranks, from the checkpoint of step {phase.from_step}"))
        for step, other in zip(phase.steps, naive_phase.steps, strict=True):
            print(
                f"{step.step:5d} {step.ranks:6d}   {step.digest:<17} {step.loss:<15.12f} "
                f"{mark(same(whole[step.step], step)):<7}  {other.digest:<17} {mark(same(naive[step.step], other))}"
            )
        if phase.killed:
            print(bad(f"{'':7}kill -9 of {phase.killed} processes in the middle of step {phase.steps[-1].step + 1}"))


def draw(
    path: Path, whole: dict[int, Step], phases: list[Phase], naive: dict[int, Step], naive_phases: list[Phase]
) -> None:
    """Two loss curves: with and without the interruption they are one, or they are not."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    colors = {4: "#1b6ca8", 2: "#d1495b", 3: "#2a9d5c"}
    figure, panels = plt.subplots(1, 2, figsize=(12, 4.8), sharey=True, layout="constrained")
    for panel, title, reference, runs in (
        (panels[0], "torchzephon: the same curve", whole, phases),
        (panels[1], "a naive loader: other batches, another curve", naive, naive_phases),
    ):
        panel.plot(
            reference.keys(),
            [s.loss for s in reference.values()],
            color="#c9c9c9",
            linewidth=9,
            label="4 ranks, not interrupted",
            solid_capstyle="round",
        )
        for run in runs:
            steps = run.steps
            panel.plot(
                [s.step for s in steps],
                [s.loss for s in steps],
                color=colors.get(run.ranks),
                linewidth=2,
                marker=".",
                label=f"{run.ranks} ranks",
            )
            if run.killed:
                panel.plot(
                    steps[-1].step,
                    steps[-1].loss,
                    "X",
                    color="black",
                    markersize=9,
                    zorder=5,
                    label="kill -9" if run is runs[0] else None,
                )
        panel.set_title(title, fontweight="bold")
        panel.set_xlabel("step")
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.25)
        panel.legend(frameon=False)
    panels[0].set_ylabel("loss")
    figure.savefig(path, dpi=130)
    plt.close(figure)


def mark(good_: bool) -> str:
    """Yes or no."""
    return good("yes") + "    " if good_ else bad("no") + "     "


def good(text: str) -> str:
    """Green, on a terminal."""
    return _color(text, 32)


def bad(text: str) -> str:
    """Red, on a terminal."""
    return _color(text, 31)


def dim(text: str) -> str:
    """Blue, on a terminal."""
    return _color(text, 34)


def _color(text: str, code: int) -> str:
    plain = not sys.stdout.isatty() or "NO_COLOR" in os.environ
    return text if plain else f"\x1b[{code}m{text}\x1b[0m"
