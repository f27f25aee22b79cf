"""A node of one's own: joins short samples, and still resumes exactly."""

import json
from typing import Any

import torchzephon as tz

from show.corpus import small_data


class JoinShort(tz.BufferedNode[dict[str, Any]]):
    """Joins neighbouring samples until they have ``min_length`` characters together.

    There is no code for saving: BufferedNode knows where the samples that were not released came from.
    """

    def __init__(self, source: Any, min_length: int) -> None:
        super().__init__(source)
        self.min_length = min_length

    def next(self) -> dict[str, Any]:
        """The next joined sample."""
        parts: list[str] = []
        while sum(map(len, parts)) < self.min_length:
            samples = self.take(1)
            if not samples:
                break
            parts.append(samples[0]["text"])
        if not parts:
            raise StopIteration
        self.release(len(parts))
        return {"text": "\n\n".join(parts)}

    def describe(self) -> dict[str, Any]:
        """What a state is checked against: another length gives other data."""
        return {"min_length": self.min_length}


def build() -> JoinShort:
    """One stream, without lanes: a graph is an ordinary torchdata graph."""
    corpus, _ = small_data()
    return JoinShort(tz.Reader(tz.MixtureWorkSource([tz.Dataset("web", f"{corpus}/web")])), min_length=2000)


node = build()
for _ in range(3):
    print(len(next(node)["text"]), "characters")
state = json.loads(json.dumps(node.state_dict()))
print("state:", state)

resumed = build()
resumed.reset(state)
assert next(resumed) == next(node)
print("the resumed node goes on with the same sample")
