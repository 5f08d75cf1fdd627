"""The README's lines do what it says: they are taken from it and sent to a running server."""

from pathlib import Path

import polars as pl
from support.page_run import PageRun
from support.pages import ROOT, steps_of
from support.server import AllInOne

STEPS = [step for step in steps_of(ROOT / "README.md") if step.kind == "sh"]


def test_the_lines_of_curl_in_the_readme_do_what_it_says(server: AllInOne, tmp_path: Path) -> None:
    (step,) = STEPS
    assert step.text.count("curl ") == 4

    place = server.url.removeprefix("http://")
    with PageRun(tmp_path / "reader", {"localhost:8080": place}) as reader:
        printed = reader.run(step.text.replace("localhost:8080", place))
        tail = pl.read_ipc_stream(reader.directory / "tail.arrows")

    assert '"count":2' in printed
    assert '"records":[{"offset":0,' in printed
    assert tail["value"].to_list() == [b"hello"]
