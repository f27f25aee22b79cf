"""What the documentation must cover."""

import re
from pathlib import Path

import pytest

import torchzephon as tz

DOCS = Path(__file__).parents[2] / "docs"


def test_every_public_name_is_in_the_api_reference():
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    documented = re.findall(r"^::: torchzephon\.(\w+)$", page, re.MULTILINE)
    assert sorted(documented) == sorted(set(tz.__all__) - {"__version__"})


def test_every_public_name_has_a_docstring():
    assert [name for name in tz.__all__ if name != "__version__" and not getattr(tz, name).__doc__] == []


@pytest.mark.parametrize("start", [DOCS / "index.md", DOCS.parent / "README.md"], ids=lambda start: start.name)
def test_every_page_can_be_reached(start):
    linked = re.findall(r"\]\(([\w./-]+\.md)", start.read_text(encoding="utf-8"))
    pages = {page for page in DOCS.glob("*.md") if page.name != "index.md"}
    assert pages <= {(start.parent / link).resolve() for link in linked}
