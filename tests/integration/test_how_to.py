"""docs/how-to and some other pages of docs: every page is followed word for word, and shows what it says.

All of them share a server, with streams of their own, except those that start one themselves.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from support.by_file import ONE_SESSION
from support.command_line import CommandLine
from support.page_run import PageRun
from support.pages import ROOT, steps_of
from support.ports import lasting_ports
from support.served import PATIENT
from support.server import AllInOne

HOW_TO = ROOT / "docs/how-to"
INDEX = HOW_TO / "README.md"
HOW_TOS = sorted(page for page in HOW_TO.glob("*.md") if page != INDEX)
MORE = ("appending", "leaderless", "broker")
PAGES = [*HOW_TOS, *(ROOT / f"docs/{name}.md" for name in MORE)]
SAID, SAID_METRICS = "127.0.0.1:8080", "127.0.0.1:9464"
SAID_DIRECTORIES = ("/tmp/two-nodes", "/tmp/three-nodes")
"""Where a page names one: with a short path, since sockets are in it."""
SAID_SEGMENTS = "/srv/copies/__orders_1795722451413973199"
LEASES_MS = {"replicas": "10000", "back-up": "20000"}
"""Of pages that wait for the end of one. What the first says of its length is so; the second asks once
a second whether it has ended, each time with a program that is started, so that a minute of that took eight
CPU seconds."""
SEGMENTS = {
    SAID_SEGMENTS: str(ROOT / "tests/golden/rabbitmq"),
    "/srv/copies/rabbit@shop": str(ROOT / "tests/golden/rabbitmq-queues/node"),
}
"""Directories of RabbitMQ, of a stream and of a node with queues, and where some are that a node wrote."""


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """One server for all pages: what they call it, and where it is."""
    (port,) = lasting_ports(1)
    metrics = f"127.0.0.1:{port}"
    directory = tmp_path_factory.mktemp("how-to")
    settings = {**PATIENT, "BOTTOMLESS_METRICS_LISTEN": metrics}
    with AllInOne(directory / "data", settings) as server:
        yield {SAID: server.url.removeprefix("http://"), SAID_METRICS: metrics}


@pytest.fixture
def short_directory() -> Iterator[str]:
    with TemporaryDirectory(prefix="bl-") as directory:
        yield directory


def settings_for(place: str, page: Path) -> dict[str, str]:
    """For who starts a server and for who looks for one."""
    return {
        **PATIENT,
        **({"BOTTOMLESS_INGEST_LEASE_MS": LEASES_MS[page.stem]} if page.stem in LEASES_MS else {}),
        "BOTTOMLESS_PORT": place.rpartition(":")[2],
        "BOTTOMLESS_URL": f"http://{place}",
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_does_what_it_says(page: Path, request: pytest.FixtureRequest) -> None:
    steps = steps_of(page)
    assert steps
    tmp_path: Path = request.getfixturevalue("tmp_path")
    if any("bottomless serve" in step.text for step in steps):
        first, second, third, fourth = lasting_ports(4)
        directory = request.getfixturevalue("short_directory")
        more = {
            f"{before}{said}": f"{before}{port}"
            for before in ("localhost:", "1:", "--port ")
            for said, port in ((8081, second), (8082, third))
        }
        own = {SAID: f"127.0.0.1:{first}", SAID_METRICS: f"127.0.0.1:{fourth}"}
        places = {**own, **more, **dict.fromkeys(SAID_DIRECTORIES, directory)}
    else:
        places = request.getfixturevalue("places")
    here = places[SAID]
    addresses = {**places, "localhost:8080": here, **SEGMENTS}
    cli = CommandLine(f"http://{here}", tmp_path)
    if any(
        step.kind == "python" and not step.word and "SparkSession" in step.text for step in steps
    ):
        # One session for all of its users; it starts a Java.
        assert request.node.nodeid.startswith(ONE_SESSION), "it has to be named there"
        request.getfixturevalue("spark")
    with PageRun(tmp_path / "reader", addresses, settings_for(here, page), cli) as reader:
        reader.take(steps)


def test_the_index_leads_to_every_page() -> None:
    assert sorted(re.findall(r"\]\(([\w-]+\.md)\)", INDEX.read_text())) == [
        page.name for page in HOW_TOS
    ]
