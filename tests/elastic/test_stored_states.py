"""States that earlier releases saved are continued exactly."""

import json

import pytest
from support.stored import LANES, STATES, continue_from

from torchzephon.elastic.state import VERSION

CASES = [
    pytest.param(case, id=f"{path.stem}, {name}")
    for path in sorted(STATES.glob("v*.json"))
    for name, case in json.loads(path.read_text()).items()
]


@pytest.mark.parametrize("case", CASES)
def test_a_stored_state_is_continued_exactly(case):
    assert len(case["batches"]) > LANES
    assert continue_from(case["graph"], case["state"]) == case["batches"]


def test_every_version_has_left_one_behind():
    assert {path.name for path in STATES.glob("v*.json")} == {f"v{version}.json" for version in range(1, VERSION + 1)}
