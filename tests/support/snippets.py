"""The Python snippets of a Markdown page, and what they say that they print."""

import re
from dataclasses import dataclass
from pathlib import Path

_SNIPPET = re.compile(
    r"^(?P<open>```python|<!-- setup)\n(?P<code>.*?)^(?:```|-->)\n"
    r"(?:\n```text title=\"Output\"\n(?P<output>.*?)^```\n)?",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Snippet:
    """One snippet.

    Attributes:
        code: its source, with empty lines before it, so that line numbers are those of the page.
        line: where it begins in the page, from 1.
        output: what the page says that it prints, None if the page says nothing.
    """

    code: str
    line: int
    output: str | None


def find_snippets(page: Path) -> list[Snippet]:
    """All snippets of a page, in order.

    A snippet is a fenced block ```` ```python ````, or a comment ``<!-- setup`` that readers do not see. A block
    ```` ```text title="Output" ```` right behind it is what it prints.

    Raises:
        ValueError: when the page has a fence that looks like Python and would not be run.
    """
    text = page.read_text(encoding="utf-8")
    snippets = []
    for match in _SNIPPET.finditer(text):
        line = text.count("\n", 0, match.start("code"))
        snippets.append(Snippet("\n" * line + match["code"], line, match["output"]))
    shown = len(re.findall(r"^\s*(?:```|~~~)\s*\{?\.?(?:py|python|python3|pycon)\b", text, re.MULTILINE))
    run = sum(match["open"] == "```python" for match in _SNIPPET.finditer(text))
    if shown != run:
        raise ValueError(f"{page}: {shown} Python blocks, but {run} would be run: open each with ```python at a margin")
    return snippets
