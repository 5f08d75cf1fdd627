"""The program among other programs: pipes that break, Ctrl-C, terminals, servers that restart."""

import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
from support.command_line import CommandLine, without_waits
from support.ports import lasting_ports
from support.server import AllInOne
from support.waiting import until

STOP_SECONDS = 240


def outcome(process: subprocess.Popen[bytes]) -> tuple[int, bytes]:
    """Exit code and everything that is left on stderr."""
    code = process.wait(STOP_SECONDS)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    assert process.stderr is not None
    with process.stderr:
        return code, process.stderr.read()


def wait_until_stored(cli: CommandLine, name: str, next_offset: int) -> None:
    until(lambda: cli.json("offsets", name)["next_offset"] == next_offset)


def stdout_of(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdout is not None
    return process.stdout


@pytest.mark.parametrize("form", ["text", "arrow"])
def test_a_reader_that_goes_away_ends_a_read_silently(cli: CommandLine, form: str) -> None:
    cli.ok("create", f"piped-{form}")
    cli.ok("produce", f"piped-{form}", cli.file(b"some record that has a length\n" * 20_000))

    reading = cli.start("read", f"piped-{form}", "-o", form)
    stdout_of(reading).read(1)
    stdout_of(reading).close()

    assert outcome(reading) == (141, b"")


def test_ctrl_c_ends_a_tail_silently_with_130(cli: CommandLine) -> None:
    cli.stream("interrupted", "hello")
    tailing = cli.start("tail", "-f", "interrupted")
    assert stdout_of(tailing).readline() == b"hello\n"

    tailing.send_signal(signal.SIGINT)

    assert outcome(tailing) == (130, b"")


def test_what_trickles_in_is_sent_as_it_comes(cli: CommandLine) -> None:
    cli.stream("trickle")
    producing = cli.start("produce", "trickle", stdin=subprocess.PIPE)
    assert producing.stdin is not None
    for count in (1, 2, 3):
        producing.stdin.write(b"%d\n" % count)
        producing.stdin.flush()
        wait_until_stored(cli, "trickle", count)
    producing.stdin.close()
    assert stdout_of(producing).read() == b"stored 3 records, the next offset is 3\n"
    assert outcome(producing) == (0, b"")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("options", [(), ("--producer", "loader")], ids=["plain", "producer"])
def test_an_interrupted_produce_says_what_is_stored_and_how_to_go_on(
    cli: CommandLine, number: signal.Signals, code: int, options: tuple[str, ...]
) -> None:
    name = cli.stream(f"cut-{number.name}-{len(options)}".lower())
    producing = cli.start("produce", name, *options, stdin=subprocess.PIPE)
    assert producing.stdin is not None
    producing.stdin.write(b"a\nb\nc\n")
    producing.stdin.flush()
    wait_until_stored(cli, name, 3)

    producing.send_signal(number)

    ended, all_said = outcome(producing)
    assert ended == code
    # What is stored may not have been answered yet; then it is said that this is waited for.
    *before, said = all_said.splitlines()
    assert all(b"waiting for the request that is under way" in line for line in before), all_said
    assert b"interrupted: 3 records stored, the next offset is 3; " in said
    if options:
        assert b"the same command with --resume goes on" in said
        whole = cli.file(b"a\nb\nc\nd\n")
        again = cli.ok("produce", name, whole, *options, "--resume")
        assert again == "stored 1 record, the next offset is 4; 3 were stored before\n"
    else:
        assert b"what comes after the first 3 records of the input" in said
        # Numbers that begin now know nothing of what is stored: all would be stored twice.
        assert b"--resume" not in said


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[AllInOne]:
    """A server of this test alone, which keeps its port when it is started again."""
    with AllInOne(tmp_path / "data", port=lasting_ports(1)[0]) as server:
        yield server


def test_a_tail_and_a_numbered_produce_outlive_a_kill_of_the_server(
    mortal: AllInOne, tmp_path: Path
) -> None:
    cli = CommandLine(mortal.url, tmp_path)
    cli.stream("lasting", "0", "1")
    tailing = cli.start("tail", "-f", "lasting", "--from", "first")
    producing = cli.start("produce", "lasting", "--producer", "p", stdin=subprocess.PIPE)
    assert producing.stdin is not None
    assert [stdout_of(tailing).readline() for _ in range(2)] == [b"0\n", b"1\n"]
    # Once a record of it is stored, it is past its beginning, which does not wait.
    producing.stdin.write(b"2\n")
    producing.stdin.flush()
    assert stdout_of(tailing).readline() == b"2\n"

    mortal.kill()
    producing.stdin.write(b"3\n4\n")
    producing.stdin.close()
    assert tailing.stderr is not None
    assert b"waiting for it" in tailing.stderr.readline()
    mortal.start()

    assert [stdout_of(tailing).readline() for _ in range(2)] == [b"3\n", b"4\n"]
    assert tailing.stderr.readline() == b"bottomless: connected again\n"
    assert stdout_of(producing).read() == b"stored 3 records, the next offset is 5\n"
    code, said = outcome(producing)
    assert (code, without_waits(said.decode())) == (0, "")
    tailing.send_signal(signal.SIGINT)
    assert outcome(tailing) == (130, b"")
    assert cli.ok("read", "lasting").split() == list("01234")


def test_a_tail_of_a_stream_that_is_deleted_ends_with_3(cli: CommandLine) -> None:
    cli.stream("doomed", "last words")
    tailing = cli.start("tail", "-f", "doomed")
    assert stdout_of(tailing).readline() == b"last words\n"

    cli.ok("rm", "doomed", "--yes")

    code, said = outcome(tailing)
    assert (code, said.count(b"\n")) == (3, 1)
    assert b"the stream was deleted" in said


def on_terminal(cli: CommandLine, *words: str, answer: bytes = b"") -> tuple[int, bytes]:
    """Run where stdin and stderr are a terminal; returns the exit code and what it showed."""
    ours, theirs = pty.openpty()
    os.write(ours, answer)
    process = cli.start(*words, stdin=theirs, stderr=theirs, stdout=subprocess.DEVNULL)
    os.close(theirs)
    code = process.wait(STOP_SECONDS)
    shown = b""
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        # A terminal whose other side is closed is an error on Linux, once all is read.
        try:
            while piece := terminal.read(4096):
                shown += piece
        except OSError:
            pass
    return code, shown


def test_on_a_terminal_removal_is_asked_for(cli: CommandLine) -> None:
    cli.stream("asked", "one")
    code, shown = on_terminal(cli, "rm", "asked", answer=b"n\n")
    assert (code, b"Delete asked (" in shown) == (1, True)
    cli.ok("describe", "asked")
    assert on_terminal(cli, "rm", "asked", answer=b"y\n")[0] == 0
    assert cli.run("describe", "asked").exit_code == 3


def test_on_a_terminal_a_file_is_produced_with_a_bar(cli: CommandLine) -> None:
    cli.stream("barred")
    source = str(cli.file(b"line\n" * 1000))
    code, shown = on_terminal(cli, "produce", "barred", source)
    assert code == 0
    assert b"100%" in shown or b"5.0/5.0 kB" in shown


def test_what_is_typed_is_asked_for_and_acknowledged(cli: CommandLine) -> None:
    cli.stream("typed")
    # As typed: a line, and Ctrl-D, which ends the input on an empty line.
    code, shown = on_terminal(cli, "produce", "typed", answer=b"hello\n\x04")
    assert code == 0
    assert b"Ctrl-D on an empty line ends it" in shown
    assert b"stored 1 record, the next offset is 1" in shown
    assert cli.ok("read", "typed") == "hello\n"


def test_a_read_that_nobody_sees_shows_how_far_it_is(cli: CommandLine) -> None:
    cli.stream("watched-read", *map(str, range(2_500)))
    code, shown = on_terminal(cli, "read", "watched-read")
    assert (code, b"2500/2500" in shown) == (0, True)
    assert b"m7/7\x1b" in on_terminal(cli, "read", "watched-read", "-o", "arrow", "-n", "7")[1]


def test_bytes_are_not_written_to_a_terminal(cli: CommandLine) -> None:
    ours, theirs = pty.openpty()
    for words in (("read", "s", "-o", "arrow"), ("fragments", "cat", "s", "f")):
        process = cli.start(*words, stdout=theirs)
        assert outcome(process)[0] == 2
    os.close(theirs)
    os.close(ours)
