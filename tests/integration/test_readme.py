"""The README's lines do what it says: they are taken from it and sent to a running server."""

import re
import shlex
from pathlib import Path

import httpx
import polars as pl
from support.server import AllInOne

README = (Path(__file__).parents[2] / "README.md").read_text()
LINES = re.findall(r"^curl (?:[^\\\n]|\\\n)*", README, re.MULTILINE)


def sent(line: str, server: AllInOne, directory: Path) -> httpx.Response:
    """What curl would send; it is not on every machine, and only these options are used."""
    words = shlex.split(line.replace("\\\n", " "), comments=True)[1:]
    method, headers, body, output, url = "GET", {}, None, None, ""
    while words:
        match words.pop(0):
            case "-X":
                method = words.pop(0)
            case "-H":
                name, _, value = words.pop(0).partition(": ")
                headers[name] = value
            case "-d":
                body = words.pop(0)
            case "-o":
                output = directory / words.pop(0)
            case word:
                assert not word.startswith("-"), f"this test does not know the option {word}"
                url = word.replace("localhost:8080", server.url)
    answer = httpx.request(method, url, headers=headers, content=body)
    if output is not None:
        output.write_bytes(answer.content)
    return answer


def test_the_lines_of_curl_in_the_readme_do_what_it_says(server: AllInOne, tmp_path: Path) -> None:
    assert len(LINES) == 4

    created, appended, read, tail = (sent(line, server, tmp_path) for line in LINES)

    assert created.status_code == httpx.codes.CREATED
    assert appended.json()["count"] == 2
    assert [record["offset"] for record in read.json()["records"]] == [0, 1]
    assert tail.status_code == httpx.codes.OK
    assert pl.read_ipc_stream(tmp_path / "tail.arrows")["value"].to_list() == [b"hello"]
