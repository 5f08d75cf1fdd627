"""Leaderless streams from the command line: created, fenced, looked at as objects, compacted.

Some 3 s on the server of this package, most of it lingers.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from support.command_line import CommandLine
from support.server import AllInOne
from support.waiting import until

from unit.formats.examples import OTHER_STREAM_ID, STREAM_ID, a_wal

EVERYTHING: list[dict[str, Any]] = [
    {"json": {"t": 21.5, "at": [None, "ü"]}, "key": "cust-9"},
    {"value": "text", "key_base64": "/w==", "filter_value": "eu"},
    {"value_base64": "AP8=", "event_time": "2026-11-21T08:00:00.000Z"},
    {"value": "", "headers": {"a": "b", "raw": {"base64": "/w=="}}},
]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """An object with two pieces of one stream and one of another, as an operator has it."""
    path = tmp_path / "000000000005.wal"
    path.write_bytes(b"".join(bytes(part) for part in a_wal().parts))
    return path


def lines(text: str) -> list[Any]:
    return [orjson.loads(line) for line in text.splitlines()]


def kept_objects(running: AllInOne, directory: Path) -> list[Path]:
    """Copies of all WAL objects: compaction may take those of other tests away meanwhile."""
    kept: list[Path] = []
    for at, _, names in os.walk(running.objects / "_system/wal"):
        for name in names:
            copy = directory / Path(at).name / name
            copy.parent.mkdir(exist_ok=True)
            with suppress(FileNotFoundError):
                copy.write_bytes((Path(at) / name).read_bytes())
                kept.append(copy)
    return [one for one in kept if one.suffix == ".wal"]


def test_a_leaderless_stream_is_created_fenced_and_unfenced(cli: CommandLine) -> None:
    created = cli.ok("create", "unowned", "--leaderless")
    assert created == cli.ok("create", "unowned", "--leaderless")
    described = cli.json("describe", "unowned")
    assert (described["profile"], described["fenced"]) == ("leaderless", False)
    assert described["tail"]["entries"] == 0
    assert cli.ok("ls", "unowned", "--long").split()[-1] == "leaderless"

    assert cli.json("fence", "unowned")["fenced"] is True
    refused = cli.run("produce", "unowned", cli.file(b"a\n"))
    assert (refused.exit_code, "stream-fenced" in refused.stderr) == (4, True)
    assert "`bottomless unfence`" in refused.stderr
    assert cli.json("unfence", "unowned")["fenced"] is False
    cli.ok("produce", "unowned", cli.file(b"a\n"))
    assert cli.ok("read", "unowned") == "a\n"


def test_what_has_an_owner_is_neither_fenced_nor_made_leaderless(cli: CommandLine) -> None:
    cli.stream("owned")
    assert cli.run("fence", "owned").exit_code == 1
    other = cli.run("create", "owned", "--leaderless")
    assert (other.exit_code, "stream-exists" in other.stderr) == (4, True)
    assert "take another name" in other.stderr
    assert "bottomless update" not in other.stderr


def test_objects_are_listed_with_who_holds_them_until_they_are_compacted(
    cli: CommandLine, running: AllInOne
) -> None:
    def held() -> list[str]:
        told = cli.json("admin", "wal", "ls")
        return [
            one
            for each in told["instances"]
            for one in (each["held"] or {"stream_ids": []})["stream_ids"]
        ]

    # Of each writer the oldest object counts, so what others left goes first.
    cli.ok("admin", "compact", "--data-dir", running.data_dir)
    until(lambda: held() == [])
    cli.stream("waits", "one", "two", options=("--leaderless",))
    assert held() == [cli.json("describe", "waits")["stream_id"]]
    assert cli.ok("admin", "wal", "ls").split()[:2] == ["INSTANCE", "STATE"]
    [*_, instance] = cli.ok("admin", "wal", "ls", "-o", "name").split()
    assert (running.objects / "_system/wal" / instance).is_dir()

    said = cli.ok("admin", "compact", "--data-dir", running.data_dir)
    assert said.startswith("WAL objects read: ")
    # A reader may still go by the root before.
    until(lambda: cli.json("offsets", "waits")["object_store_next_offset"] == 2)
    until(lambda: held() == [])
    again = cli.json("admin", "compact", "--data-dir", running.data_dir)
    assert again == {"object_count": 0, "stream_count": 0}


def test_a_round_is_asked_of_an_uploader_that_is_there(cli: CommandLine, tmp_path: Path) -> None:
    for words in (("--data-dir", tmp_path), ("--uploader", "http://127.0.0.1:1")):
        nobody = cli.run("admin", "compact", *words)
        assert (nobody.exit_code, "--uploader names its internal listener" in nobody.stderr) == (
            5,
            True,
        )
    assert cli.run("admin", "compact", "--uploader", "127.0.0.1:1").exit_code == 2


def test_an_object_is_printed_as_records_that_can_be_appended(
    cli: CommandLine, running: AllInOne, tmp_path: Path
) -> None:
    cli.ok("create", "in-doubt", "--leaderless")
    path = f"{cli.url}/v1/streams/in-doubt/records"
    httpx.post(path, json={"records": EVERYTHING}).raise_for_status()
    stream_id = cli.json("describe", "in-doubt")["stream_id"]
    objects = kept_objects(running, tmp_path)
    [file] = [file for file in objects if stream_id in cli.ok("admin", "wal", "show", file)]

    assert lines(cli.ok("admin", "wal", "cat", file, "--stream", stream_id)) == EVERYTHING
    [first, *_] = lines(cli.ok("admin", "wal", "cat", file))
    assert first == {"stream_id": stream_id, "piece": 0, **EVERYTHING[0]}

    again = cli.file(cli.ok("admin", "wal", "cat", file, "--stream", stream_id).encode())
    cli.ok("create", "saved")
    cli.ok("produce", "saved", again, "--format", "records")
    read = lines(cli.ok("read", "saved", "-o", "ndjson"))
    stored = [{k: v for k, v in one.items() if k not in ("offset", "timestamp")} for one in read]
    assert stored == EVERYTHING


def test_an_object_says_what_is_in_it(cli: CommandLine, written: Path) -> None:
    shown = cli.json("admin", "wal", "show", written)
    assert (shown["sequence"], shown["noted_below"], shown["notes_waited_for"]) == (5, 3, True)
    assert [piece["stream_id"] for piece in shown["pieces"]] == [STREAM_ID] * 2 + [OTHER_STREAM_ID]
    assert [note["sequence"] for note in shown["notes"]] == [3]
    assert f"0      {STREAM_ID}  4        2" in cli.ok("admin", "wal", "show", written)


def test_what_is_damaged_is_named_and_the_rest_is_printed(cli: CommandLine, written: Path) -> None:
    data = bytearray(written.read_bytes())
    data[-100] ^= 1
    written.write_bytes(data)
    ran = cli.run("admin", "wal", "cat", written)
    assert ran.exit_code == 1
    assert [line["piece"] for line in lines(ran.stdout)] == [0] * 4 + [1] * 2
    assert f"piece 2 of stream {OTHER_STREAM_ID} is damaged" in ran.stderr

    for name in ("cat", "show"):
        other = cli.run("admin", "wal", name, cli.file(b"something else"))
        assert (other.exit_code, "is no WAL object, or is damaged" in other.stderr) == (1, True)
        assert cli.run("admin", "wal", name, written.parent / "none").exit_code == 1
    assert cli.run("admin", "wal", "cat", written, "--stream", "orders").exit_code == 1
    assert cli.ok("admin", "wal", "cat", written, "--stream", "0" * 8 + STREAM_ID[8:]) == ""
