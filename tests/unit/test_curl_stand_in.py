"""The stand-in for curl is as strict as curl: it sends what is said, or fails."""

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile

import pytest
from support.nursery import nursery
from support.pages import ROOT
from support.server import AllInOne

PROGRAM = str(ROOT / "tests/support/curl.py")


def curl(*words: str) -> tuple[int, bytes]:
    """Its exit code, and what it prints."""
    with TemporaryFile() as its_stderr:
        process = nursery().spawn(words, os.environ, its_stderr, PROGRAM)
        with process.stdout as printed:
            said = printed.read()
        return process.wait(timeout=240), said.encode()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with AllInOne(tmp_path_factory.mktemp("curl") / "data") as server:
        yield server.url


def test_it_sends_what_is_said(url: str, tmp_path: Path) -> None:
    stream = f"{url.removeprefix('http://')}/v1/streams/orders"
    assert curl("-X", "PUT", stream)[0] == 0
    assert (
        curl(f"{stream}/records", "-H", "Content-Type: application/octet-stream", "-d", "a")[0] == 0
    )
    assert curl(f"{stream}/records/0", "-H", "Accept: application/octet-stream") == (0, b"a")
    assert curl(
        f"{stream}/records/0", "-H", "Accept: application/octet-stream", "-o", str(tmp_path / "a")
    ) == (0, b"")
    assert (tmp_path / "a").read_bytes() == b"a"


def test_what_is_refused_fails(url: str) -> None:
    code, said = curl(f"{url}/v1/streams/none")
    assert (code, b"stream-not-found" in said) == (22, True)
    # As curl would: a form, which nobody here takes.
    assert curl(f"{url}/v1/streams/none/records", "-d", "a")[0] == 22


def test_what_it_does_not_know_fails() -> None:
    assert curl("--retry", "3", "http://127.0.0.1:9/") == (2, b"")
    assert curl("http://127.0.0.1:9/", "http://127.0.0.1:9/")[0] == 2
    assert curl("http://127.0.0.1:9/")[0] != 0
