"""A real browser without a window, and pages that are served to it on the loopback."""

import http.client
import json
import queue
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest

from support.programs import running_program

PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome")
REPORT_SECONDS: Final = 120
_OPTIONS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


def chromium() -> str:
    """The program; a test that wants it is skipped where it is not installed."""
    for name in PROGRAMS:
        if (path := shutil.which(name)) is not None:
            return path
    pytest.skip(f"no browser is installed here: none of {', '.join(PROGRAMS)}")


@contextmanager
def browsing(url: str, profile_dir: Path, *, names: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """Open a page until the end of the block. `names` are rules by which the browser finds the
    addresses of hosts, such as `MAP evil.example 127.0.0.1`; no other host is found."""
    rules = ", ".join(filter(None, [names, "MAP * ~NOTFOUND", "EXCLUDE 127.0.0.1"]))
    command = [
        chromium(),
        *_OPTIONS,
        f"--user-data-dir={profile_dir}",
        f"--host-resolver-rules={rules}",
        "--remote-debugging-port=0",
        url,
    ]
    with running_program(command, profile_dir.parent / "browser.log") as process:
        yield process


class Pages(ThreadingHTTPServer):
    """A web server of a stranger: `/page` is its page, and what that posts to `/report` is kept.

    With a `behind`, every other path is passed on to that server as it came, under the name that
    the browser used. So is it when the stranger's name points to the loopback from one request
    to the next.
    """

    daemon_threads = True

    def __init__(self, page: str, behind: str | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.page = page
        self.behind = behind
        self.reports: queue.Queue[Any] = queue.Queue()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def report(self) -> Any:
        """What the page said; waits for it."""
        try:
            return self.reports.get(timeout=REPORT_SECONDS)
        except queue.Empty:
            raise AssertionError("the page in the browser never reported") from None

    @contextmanager
    def serving(self) -> Iterator["Pages"]:
        thread = threading.Thread(target=self.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.shutdown()
            self.server_close()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: Pages

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/page":
            self._send(200, self.server.page.encode(), "text/html")
        elif self.path == "/report":
            self.server.reports.put(json.loads(body))
            self._send(204, b"", "text/plain")
        elif self.server.behind is None:
            self._send(404, b"", "text/plain")
        else:
            self._pass_on(self.server.behind, body)

    do_GET = do_POST = do_PUT = do_DELETE = do_OPTIONS = _answer  # noqa: N815

    def _pass_on(self, behind: str, body: bytes) -> None:
        connection = http.client.HTTPConnection(urlsplit(behind).netloc, timeout=30)
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        answer = connection.getresponse()
        self._send(answer.status, answer.read(), answer.headers["content-type"] or "text/plain")
        connection.close()

    def _send(self, status: int, body: bytes, media_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing is said of what is served."""
