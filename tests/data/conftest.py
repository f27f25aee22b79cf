"""Files, storages and pools for the tests of the data room."""

import functools
import http.server
import re
import threading

import fsspec
import pytest

from torchzephon.data.pool import Pool


@pytest.fixture
def pool():
    return Pool(100_000_000)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache root of this test alone."""
    root = tmp_path / "cache-root"
    monkeypatch.setenv("TORCHZEPHON_CACHE", str(root))
    return root


@pytest.fixture
def memory():
    """fsspec's memory file system, empty."""
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pseudo_dirs[:] = [""]
    yield system
    system.store.clear()


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Serves files with ranges (or without), counts what it sends, and fails when it is told to."""

    def log_message(self, *args):
        pass

    def do_GET(self):
        server = self.server
        path = self.translate_path(self.path)
        server.requests.append(self.path)
        if server.failures.get(self.path.rsplit("/", 1)[-1], 0) > 0:
            server.failures[self.path.rsplit("/", 1)[-1]] -= 1
            self.send_error(503)
            return
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not server.ranges or not wanted:
            super().do_GET()
            return
        try:
            with open(path, "rb") as file:
                data = file.read()
        except OSError:
            self.send_error(404)
            return
        first, last = int(wanted[1]), min(int(wanted[2] or len(data) - 1), len(data) - 1)
        if first >= len(data):
            self.send_error(416)
            return
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        self.send_header("Content-Length", str(last - first + 1))
        self.end_headers()
        self.wfile.write(data[first : last + 1])

    def end_headers(self):
        if self.server.ranges:
            self.send_header("Accept-Ranges", "bytes")
        super().end_headers()


@pytest.fixture
def web(tmp_path):
    """A real HTTP server on loopback: ``.root`` is its directory, ``.url`` its address."""
    root = tmp_path / "web-root"
    root.mkdir()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Handler, directory=str(root)))
    server.root, server.url = root, f"http://127.0.0.1:{server.server_port}"
    server.ranges, server.requests, server.failures = True, [], {}
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()
