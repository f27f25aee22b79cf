"""Where a curriculum stops: one global position, computed from the mixture alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from torchzephon.curriculum.checks import check_int
from torchzephon.curriculum.mixture import Mixture

Policy: TypeAlias = Literal["repeat", "stop"]


@dataclass(frozen=True)
class Stopping:
    """When a curriculum ends. With neither rule it is endless.

    Attributes:
        min_passes: it ends with the pick that completes this many passes over every dataset; None: no such rule.
        max_passes: for each dataset, it ends before the pick that would begin one pass more; None: any number.
    """

    min_passes: int | None
    max_passes: tuple[int | None, ...]

    def total(self, mixture: Mixture, sizes: Sequence[int]) -> int | None:
        """The number of picks, None if there is no end."""
        if self.min_passes is not None:
            lasts = [mixture.position(d, self.min_passes * size - 1) for d, size in enumerate(sizes)]
            return None if None in lasts else max(last + 1 for last in lasts if last is not None)
        ends = [
            mixture.position(d, passes * size)
            for d, (size, passes) in enumerate(zip(sizes, self.max_passes, strict=True))
            if passes is not None
        ]
        return min((end for end in ends if end is not None), default=None)


def stopping_rule(
    names: Sequence[str],
    exhausted_policy: Policy | Mapping[str, Policy] | None,
    stop_after_passes: int | None,
    max_repeats: int | Mapping[str, int | None] | None,
) -> Stopping:
    """Checks the stopping arguments of a mixture and brings them into one form.

    Args:
        names: the datasets.
        exhausted_policy: what happens when a dataset has been read to its end: it repeats, or the whole curriculum
            stops. By dataset: those not named stop, or repeat if there is ``stop_after_passes``. None: repeat.
        stop_after_passes: ends when every dataset was read at least this often; None: 1 if no other rule is given.
        max_repeats: repeats of a dataset after its first pass; one more stops the whole curriculum. None: no bound.

    Raises:
        ValueError, TypeError: naming the argument, for values that mean nothing and for rules that contradict.
    """
    unnamed = "stop" if stop_after_passes is None else "repeat"
    policies = per_dataset("exhausted_policy", exhausted_policy, names, default=unnamed)
    repeats = per_dataset("max_repeats", max_repeats, names, default=None)
    for name, policy in policies.items():
        if policy not in ("repeat", "stop", None):
            raise ValueError(f"exhausted_policy must be 'repeat' or 'stop', got {policy!r} for dataset {name!r}")
    for name, count in repeats.items():
        if count is not None:
            check_int("max_repeats", count, at_least=0, where=f" for dataset {name!r}")
    stopped = [name for name in names if policies[name] == "stop"]
    bounded = [name for name in names if repeats[name] is not None]
    if stop_after_passes is not None:
        check_int("stop_after_passes", stop_after_passes, at_least=1)
        if stopped:
            raise ValueError(
                f"stop_after_passes={stop_after_passes} repeats every dataset until all are done, but exhausted_policy"
                f" is 'stop' for {stopped}; drop one of the two"
            )
        if bounded:
            raise ValueError(
                f"stop_after_passes={stop_after_passes} asks for at least so many passes over every dataset, but"
                f" max_repeats bounds {bounded} from above; drop one of the two"
            )
    for name in bounded:
        if policies[name] == "stop":
            raise ValueError(
                f"max_repeats={repeats[name]} allows dataset {name!r} to repeat, but its exhausted_policy is 'stop';"
                " drop max_repeats or use exhausted_policy='repeat'"
            )
    if exhausted_policy is None and not bounded:
        return Stopping(1 if stop_after_passes is None else stop_after_passes, (None,) * len(names))
    passes = [1 if policies[name] == "stop" else None if repeats[name] is None else repeats[name] + 1 for name in names]
    return Stopping(stop_after_passes, tuple(passes))


def per_dataset(argument: str, value: Any, names: Sequence[str], default: Any) -> dict[str, Any]:
    """A scalar for every dataset, or a mapping with ``default`` for those that it does not name.

    Raises:
        ValueError: the mapping names a dataset that is not there.
    """
    if not isinstance(value, Mapping):
        return dict.fromkeys(names, value)
    unknown = [name for name in value if name not in names]
    if unknown:
        raise ValueError(f"{argument} names unknown datasets {unknown}; the datasets are {list(names)}")
    return {name: value.get(name, default) for name in names}
