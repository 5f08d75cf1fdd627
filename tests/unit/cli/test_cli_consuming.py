"""Tail as a consumer: it goes on where it was, and a key that only appends can produce."""

import signal
import subprocess
from pathlib import Path
from typing import IO

import pytest
from support.command_line import CommandLine
from support.ports import lasting_ports
from support.server import AllInOne
from support.waiting import until

STOP_SECONDS = 240
LONG = b"x" * 500_000


def next_offset(cli: CommandLine, stream: str, consumer: str) -> int:
    """0 as long as nothing was committed."""
    known = cli.json("consumers", "ls", stream)
    assert [one["consumer"] for one in known] in ([], [consumer])
    return int(known[0]["next_offset"]) if known else 0


def test_a_consumer_gets_every_record_once_and_goes_on_behind_it(cli: CommandLine) -> None:
    cli.stream("jobs", "one", "two", "three")
    assert cli.ok("tail", "jobs", "--consumer", "night") == "one\ntwo\nthree\n"
    assert cli.ok("tail", "jobs", "--consumer", "night") == ""
    cli.ok("produce", "jobs", cli.file(b"four\n"))
    assert cli.ok("tail", "jobs", "--consumer", "night") == "four\n"
    assert next_offset(cli, "jobs", "night") == 4


def test_where_a_consumer_begins_is_said_for_its_first_time_only(cli: CommandLine) -> None:
    cli.stream("late", "one", "two", "three")
    latecomer = ("tail", "late", "--consumer", "late", "--from")
    assert cli.ok(*latecomer, "tail:1") == "three\n"
    assert cli.ok(*latecomer, "first") == ""


def test_an_empty_stream_stores_nothing(cli: CommandLine) -> None:
    cli.stream("silent")
    assert cli.ok("tail", "silent", "--consumer", "night") == ""
    assert cli.json("consumers", "ls", "silent") == []


def stdout_of(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdout is not None
    return process.stdout


def test_a_consumer_that_stays_outlives_a_kill_of_the_server_and_its_own(tmp_path: Path) -> None:
    with AllInOne(tmp_path / "data", {}, *lasting_ports(1)) as server:
        cli = CommandLine(server.url, tmp_path)
        cli.stream("jobs", "one")
        with cli.start("tail", "-f", "jobs", "--consumer", "day") as tailing:
            assert stdout_of(tailing).readline() == b"one\n"
            server.kill()
            server.start()
            cli.ok("produce", "jobs", cli.file(b"two\n"))
            assert stdout_of(tailing).readline() == b"two\n"
            # It commits behind what it wrote.
            until(lambda: next_offset(cli, "jobs", "day") == 2)
            tailing.send_signal(signal.SIGINT)
            assert tailing.wait(STOP_SECONDS) == 130
        cli.ok("produce", "jobs", cli.file(b"three\n"))
        assert cli.ok("tail", "jobs", "--consumer", "day") == "three\n"


def test_another_that_is_ahead_ends_a_consumer(cli: CommandLine) -> None:
    cli.stream("shared")
    cli.ok("produce", "shared", cli.file(LONG), "--format", "raw")
    with cli.start("tail", "-f", "shared", "--consumer", "both", bufsize=0) as tailing:
        # More than a pipe takes: it has not written all of it, so it has not committed.
        assert stdout_of(tailing).read(1) == b"x"
        cli.ok("produce", "shared", cli.file(b"two\n"))
        cli.ok("consumers", "set", "shared", "both", 2)
        out, err = tailing.communicate(timeout=STOP_SECONDS)
    assert (tailing.returncode, b"offset-regression" in err) == (4, True)
    assert out == LONG[1:] + b"\n"


def test_a_consumer_without_an_offset_is_told_how_to_get_one(cli: CommandLine) -> None:
    cli.stream("unread", "one")
    result = cli.run("read", "unread", "--from", "stored", "--consumer", "nobody")
    assert (result.exit_code, "`bottomless tail --consumer`" in result.stderr) == (3, True)


def test_a_key_that_only_appends_can_produce(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root.secret"
    root.write_text("0123456789abcdef" * 3)
    settings = {"BOTTOMLESS_IDENTITY": "true", "BOTTOMLESS_ROOT_KEY_FILE": str(root)}
    with AllInOne(tmp_path / "data", settings) as server:
        cli = CommandLine(server.url, tmp_path)
        monkeypatch.setenv("BOTTOMLESS_TOKEN", f"sk_root_{root.read_text()}")
        cli.stream("orders")
        file = tmp_path / "shop.key"
        cli.ok("keys", "create", "--scope", "append:orders", "--secret-file", file, "-o", "name")
        monkeypatch.delenv("BOTTOMLESS_TOKEN")
        monkeypatch.setenv("BOTTOMLESS_TOKEN_FILE", str(file))
        assert cli.ok("produce", "orders", cli.file(b"a\n")) == (
            "stored 1 record, the next offset is 1\n"
        )
        cli.ok("produce", "orders", cli.file(b"b\n"), "--producer", "p")
        refused = cli.run("produce", "others", cli.file(b"c\n"))
        assert (refused.exit_code, "stream-not-found" in refused.stderr) == (3, True)
