"""What the documentation must cover."""

import re
from pathlib import Path

import torchzephon as tz

DOCS = Path(__file__).parents[2] / "docs"


def test_every_public_name_is_in_the_api_reference():
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    documented = re.findall(r"^::: torchzephon\.(\w+)$", page, re.MULTILINE)
    assert sorted(documented) == sorted(set(tz.__all__) - {"__version__"})


def test_every_public_name_has_a_docstring():
    assert [name for name in tz.__all__ if name != "__version__" and not getattr(tz, name).__doc__] == []
