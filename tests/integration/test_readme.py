"""The README's first records are what it says: its lines are run against a running server."""

from pathlib import Path

from support.page_run import PageRun
from support.pages import ROOT, steps_of
from support.server import AllInOne

STEPS = [step for step in steps_of(ROOT / "README.md") if step.kind != "console"]


def test_the_readme_appends_and_reads_its_first_records(server: AllInOne, tmp_path: Path) -> None:
    curl, python, shown = STEPS
    assert [step.kind for step in STEPS] == ["sh", "python", "text"]
    assert curl.text.count("curl ") == 3

    place = server.url.removeprefix("http://")
    addresses = {"localhost:8080": place, "http://127.0.0.1:8080": server.url}
    with PageRun(tmp_path / "reader", addresses) as reader:
        printed = reader.run(curl.text.replace("localhost:8080", place))
        reader.take([python, shown])

    assert '"count":2' in printed
    assert '"records":[{"offset":0,' in printed
