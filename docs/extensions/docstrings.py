"""Docstrings are written for any reader of the source; this turns their few Sphinx marks into Markdown."""

from __future__ import annotations

import re
from typing import Any

import griffe

import torchzephon

_ROLE = re.compile(r":(?:class|func|meth|attr|mod):`(?:[^`<]*<)?~?(?P<target>[\w.]+)>?`")
_LITERAL = re.compile(r"::\n\n(?P<code>(?:(?: {4}.*)?\n)+)")


class Docstrings(griffe.Extension):
    """Sphinx roles become links to public names, literal blocks become Python code."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrites one docstring."""
        if obj.docstring is not None:
            text = _ROLE.sub(_link, obj.docstring.value)
            obj.docstring.value = _LITERAL.sub(_fence, text + "\n").rstrip()


def _link(match: re.Match[str]) -> str:
    name = match["target"].rpartition(".")[2]
    if name in torchzephon.__all__:
        return f"[`{name}`][torchzephon.{name}]"
    return f"`{match['target'].removeprefix('torchzephon.')}`"


def _fence(match: re.Match[str]) -> str:
    code = re.sub(r"^ {4}", "", match["code"], flags=re.MULTILINE).rstrip()
    return f":\n\n```python\n{code}\n```\n\n"
