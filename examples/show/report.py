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


@dataclass(frozen=True)
class Comparison:
    """A job that was left alone, and the same job interrupted.

    Attributes:
        whole: step number -> step of the job that was left alone.
        phases: of the interrupted job, in order of time.
    """

    whole: dict[int, Step]
    phases: list[Phase]

    @property
    def steps(self) -> list[Step]:
        """All steps of the interrupted job, in order of time: those undone by a kill are there twice."""
        return [step for phase in self.phases for step in phase.steps]

    def agrees(self, step: Step) -> bool:
        """Whether a step of the interrupted job is as it would have been without the interruption."""
        return same(self.whole[step.step], step)

    def agreeing(self) -> int:
        """How many of :attr:`steps` agree."""
        return sum(map(self.agrees, self.steps))

    def difference(self) -> float:
        """The largest relative difference of the losses."""
        return max(abs(step.loss / self.whole[step.step].loss - 1) for step in self.steps)

    def is_same(self) -> bool:
        """Whether both jobs did all the same steps."""
        return {step.step for step in self.steps} == set(self.whole) and self.agreeing() == len(self.steps)


def print_table(ours: Comparison, naive: Comparison) -> None:
    """The interrupted jobs in order of time; each step says whether it is that of the job that was left alone."""
    print(f"{'':29}torchzephon{'':23}a naive loader")
    print(f"{'step':>5} {'ranks':>6}   {'global batch':<17} {'loss':<15} {'same?':<7}  {'global batch':<17} same?")
    for phase, naive_phase in zip(ours.phases, naive.phases, strict=True):
        if phase.from_step:
            print(blue(f"{'':7}back on {phase.ranks} ranks, from the checkpoint of step {phase.from_step}"))
        for step, other in zip(phase.steps, naive_phase.steps, strict=True):
            print(
                f"{step.step:5d} {step.ranks:6d}   {step.digest:<17} {step.loss:<15.12f} "
                f"{mark(ours.agrees(step))}     {other.digest:<17} {mark(naive.agrees(other))}"
            )
        if phase.killed:
            step, ranks = phase.steps[-1].step + 1, phase.killed - 1
            print(red(f"{'':7}kill -9 of torchrun and its {ranks} ranks in the middle of step {step}"))


def draw(path: Path, ours: Comparison, naive: Comparison) -> None:
    """Two pairs of loss curves: with and without the interruption they are one, or they are not."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    colors = {4: "#1b6ca8", 2: "#d1495b", 3: "#2a9d5c"}
    figure, panels = plt.subplots(1, 2, figsize=(12, 4.8), sharey=True, layout="constrained")
    titles = ("torchzephon: the same curve", "a naive loader: other batches, another curve")
    for panel, title, jobs in zip(panels, titles, (ours, naive), strict=True):
        whole = jobs.whole.values()
        panel.plot(
            [step.step for step in whole],
            [step.loss for step in whole],
            color="#c9c9c9",
            linewidth=9,
            solid_capstyle="round",
            label="4 ranks, not interrupted",
        )
        for phase in jobs.phases:
            numbers, losses = [step.step for step in phase.steps], [step.loss for step in phase.steps]
            panel.plot(
                numbers, losses, color=colors[phase.ranks], linewidth=2, marker=".", label=f"{phase.ranks} ranks"
            )
            if phase.killed:
                label = "kill -9" if phase is jobs.phases[0] else None
                panel.plot(numbers[-1:], losses[-1:], "X", color="black", markersize=9, zorder=5, label=label)
        panel.set_title(title, fontweight="bold")
        panel.set_xlabel("step")
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.25)
        panel.legend(frameon=False)
    panels[0].set_ylabel("loss")
    figure.savefig(path, dpi=130)
    plt.close(figure)


def mark(agrees: bool) -> str:
    """Yes or no."""
    return green("yes") if agrees else red("no ")


def green(text: str) -> str:
    """Green, on a terminal."""
    return _color(text, 32)


def red(text: str) -> str:
    """Red, on a terminal."""
    return _color(text, 31)


def blue(text: str) -> str:
    """Blue, on a terminal."""
    return _color(text, 34)


def _color(text: str, code: int) -> str:
    plain = not sys.stdout.isatty() or "NO_COLOR" in os.environ
    return text if plain else f"\x1b[{code}m{text}\x1b[0m"
