"""Every Python snippet of the README and of the documentation runs, and prints what the page says."""

import contextlib
import gc
import io
import multiprocessing
import signal
import sys
import threading
import time
import types
from pathlib import Path

import pytest
import torch.distributed as dist
from support.snippets import find_snippets

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SIGNALS = [signal.SIGTERM, signal.SIGUSR1]


@pytest.fixture
def module(docs_folder):
    """What a page runs in: a module of its own, so that its functions have a name to be found under."""
    module = types.ModuleType("page")
    sys.modules["page"] = module
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    yield module
    for number, handler in handlers.items():
        signal.signal(number, handler)
    for value in list(vars(module).values()):
        if hasattr(value, "close") and hasattr(value, "load_state_dict"):
            value.close()
    vars(module).clear()
    del sys.modules["page"]
    gc.collect()  # a StatefulDataLoader stops its workers when it is collected
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_snippets_run(page, module):
    for snippet in find_snippets(page):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(snippet.code, str(page), "exec"), vars(module))
        if snippet.output is not None:
            assert printed.getvalue() == snippet.output, f"{page}:{snippet.line} prints something else"


def test_snippets_leave_nothing_running():
    assert not multiprocessing.active_children()
    deadline = time.monotonic() + 5  # those of the background linger for a moment
    while names := [thread.name for thread in threading.enumerate() if thread.name.startswith("torchzephon")]:
        assert time.monotonic() < deadline, names
        time.sleep(0.01)


def test_a_block_that_would_not_be_run_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("text\n\n- item\n\n  ```python\n  1 / 0\n  ```\n")
    with pytest.raises(ValueError, match="1 Python blocks, but 0 would be run"):
        find_snippets(page)


def test_output_and_hidden_setup_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text('<!-- setup\nx = 1\n-->\n\n```python\nprint(x)\n```\n\n```text title="Output"\n1\n```\n')
    first, second = find_snippets(page)
    assert (first.code.strip(), first.output) == ("x = 1", None)
    assert (second.code.strip(), second.output, second.line) == ("print(x)", "1\n", 5)
