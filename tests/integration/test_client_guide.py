"""docs/client.md: its blocks are run as they stand there, one after the other."""

from pathlib import Path

from support.page_run import PageRun
from support.pages import ROOT, steps_of
from support.server import AllInOne

STEPS = steps_of(ROOT / "docs/client.md")


def test_the_blocks_of_the_guide_do_what_it_says(server: AllInOne, tmp_path: Path) -> None:
    assert len([step for step in STEPS if step.kind == "python"]) == 15
    with PageRun(tmp_path / "reader", {"http://127.0.0.1:8080": server.url}) as reader:
        reader.take(STEPS)
        client, offsets = reader.names["client"], reader.names["offsets"]
        values = [
            value
            for page in client.arrow_pages("orders", "first")
            for value in page.table.column("value").to_pylist()
        ]
    assert values[:3] == [b"hello", b'{"id":7}', b"order 0"]
    assert values[2:10_002] == [b"order %d" % number for number in range(10_000)]
    assert values[10_002:10_008] == [b'{"id":8}', b"\x00\x01", b"text", b"a", b"b", b"c"]
    assert values[10_008:10_109] == [*(b"line %d" % number for number in range(100)), b"once"]
    assert values[10_109:] == [b"async %d" % number for number in range(100)]
    assert offsets == list(range(10_109, 10_209))
