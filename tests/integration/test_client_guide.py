"""docs/client.md: its blocks are run as they stand there, one after the other."""

import re
from pathlib import Path
from typing import Any

from support.server import AllInOne

GUIDE = (Path(__file__).parents[2] / "docs/client.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)


def test_the_blocks_of_the_guide_do_what_it_says(server: AllInOne, capsys: Any) -> None:
    assert len(BLOCKS) == 9
    names: dict[str, Any] = {}
    for block in BLOCKS:
        exec(block.replace("http://127.0.0.1:8080", server.url), names)
    with names["client"] as client:
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
    assert names["offsets"] == list(range(10_109, 10_209))
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "0 2"
    assert said[2:] == ["3", "[0, 1] 2", "[b'line 98', b'line 99', b'once'] 10109"]
