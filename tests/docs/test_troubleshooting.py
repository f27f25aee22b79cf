"""The messages that the troubleshooting page quotes are those of the library."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOLE = "…"


def _template(node):
    """The text of a string in the source, with a hole for every value that is put into it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.sub(r"%[ds]", HOLE, node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_template(part) if isinstance(part, ast.Constant) else HOLE for part in node.values)
    return ""


@pytest.fixture(scope="module")
def templates():
    files = (ROOT / "torchzephon").rglob("*.py")
    return [_template(node) for file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))]


def _quoted():
    page = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+?) \| .+ \|$", page, re.MULTILINE)
    return [message for row in rows for message in re.findall(r"^`(.+)`$", row)]


def test_messages_are_quoted():
    assert len(_quoted()) > 30


@pytest.mark.parametrize("message", _quoted())
def test_a_quoted_message_is_in_the_source(message, templates):
    parts = [part for part in message.split(HOLE) if part]
    pattern = re.compile(".*".join(map(re.escape, parts)), re.DOTALL)
    assert any(pattern.search(template) for template in templates)
