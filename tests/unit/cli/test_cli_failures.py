"""Failures of every kind become one line and an exit code."""

import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import typer
from support.command_line import PROGRAM, CommandLine
from support.command_line import app as program
from support.server import AllInOne
from support.waiting import until
from typer.testing import CliRunner

from bottomless.cli.failures import exit_code_of, failures_told, sentence_of
from bottomless.cli.hints import hint_for
from bottomless.client.problems import CLASSES
from bottomless.errors import (
    Code,
    Exists,
    Fault,
    InvalidRequest,
    NotFound,
    Outcome,
    StoreError,
    Unavailable,
)
from bottomless_server.core.not_found import stream_not_found


@pytest.mark.parametrize("code", Code)
def test_every_code_has_an_exit_code_and_an_advice(code: Code) -> None:
    error = CLASSES[code]("it failed", code=code, outcome=Outcome.UNKNOWN)
    assert exit_code_of(error) in {1, 3, 4, 5, 6}
    said = sentence_of(error)
    assert said.startswith(f"it failed ({code}); whether it was stored is not known")
    assert code is Code.INTERNAL or said.count("; ") == 2


def test_the_exit_code_tells_kinds_apart() -> None:
    assert exit_code_of(InvalidRequest("no")) == 1
    assert exit_code_of(NotFound("no")) == 3
    assert exit_code_of(Unavailable("no")) == 5
    assert exit_code_of(StoreError("no")) == 1
    assert exit_code_of(StoreError("no", retryable=True)) == 5


def test_a_line_stays_one_line_and_names_the_place_of_a_fault() -> None:
    faults = [Fault("bad", f"no number {n}", f"/records/{n}") for n in range(9)]
    said = sentence_of(InvalidRequest("the body\nis wrong", faults=faults))
    assert "/records/2: no number 2" in said
    assert "/records/3" not in said


def test_a_servers_sentence_cannot_give_orders_to_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Tables were shown so before, failures as they came."""
    hostile = StoreError("\x1b[2Jgone\u202e\r\nnext é", facts={"extra": "\x9b1m\a"})
    with pytest.raises(typer.Exit), failures_told():
        raise hostile
    told = capsys.readouterr().err
    assert told.startswith("bottomless: ?[2Jgone? next é")
    assert told.removesuffix("\n").isprintable()


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (KeyboardInterrupt(), 130),
        (BrokenPipeError(), 141),
        (NotFound("no"), 3),
        (OSError(28, "No space left on device"), 1),
    ],
)
def test_what_can_be_foreseen_becomes_an_exit_code(raised: BaseException, code: int) -> None:
    with pytest.raises(typer.Exit) as ended, failures_told():
        raise raised
    assert ended.value.exit_code == code


def test_a_bug_stays_a_traceback() -> None:
    with pytest.raises(ZeroDivisionError), failures_told():
        raise ZeroDivisionError


def test_an_argument_that_is_no_text_is_wrong_usage() -> None:
    ran = subprocess.run([PROGRAM, "describe", b"\xff"], capture_output=True, check=False)
    assert (ran.returncode, ran.stderr) == (2, b"bottomless: an argument must be UTF-8\n")


def test_a_manifest_that_is_not_sound_is_exit_code_1(cli: CommandLine, running: AllInOne) -> None:
    cli.stream("damaged", "a", options=("--fragment-age-ms", "100"))
    until(lambda: cli.json("offsets", "damaged")["object_store_next_offset"] == 1)
    (fragment,) = cli.ok("fragments", "ls", "damaged", "-o", "name").split()
    uid = fragment.split("-")[1]
    (path,) = (path for path in running.objects.rglob("*") if uid in path.name)
    path.unlink()

    result = cli.run("manifest", "verify", "damaged")

    assert (result.exit_code, "fragment-missing" in result.stdout) == (1, True)
    assert result.stderr == (
        "bottomless: damaged has 1 fault: docs/runbooks.md says under Verifying a stream what each "
        "means\n"
    )


class Stranger(BaseHTTPRequestHandler):
    """Answers everything with JSON, but is none of ours."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("words", [("ls",), ("read", "s"), ("tail", "-f", "s")], ids=" ".join)
def test_a_server_that_is_another_is_told_from_ours(tmp_path: Path, words: tuple[str, ...]) -> None:
    with HTTPServer(("127.0.0.1", 0), Stranger) as stranger:
        threading.Thread(target=stranger.serve_forever, args=(0.01,)).start()
        result = CommandLine(f"http://127.0.0.1:{stranger.server_port}", tmp_path).run(*words)
        stranger.shutdown()
    assert result.exit_code == 5
    assert "the answer is not that of a Bottomless server" in result.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("read", "s", "-o", "yaml"), "'yaml' is not one of"),
        (("produce", "s", "--format", "yaml"), "'yaml' is not one of"),
        (("produce", "s", "no-such-file"), "does not exist"),
        (("consumers", "ls", "s", "-o", "yaml"), "'yaml' is not one of"),
    ],
)
def test_wrong_usage_is_told_without_words_of_a_library(words: tuple[str, ...], told: str) -> None:
    result = CliRunner().invoke(program(), words)
    assert result.exit_code == 2
    assert told in result.stderr
    assert "Value error" not in result.stderr


def test_a_stream_that_is_not_there_comes_with_commands_and_not_with_requests() -> None:
    said = sentence_of(stream_not_found())
    assert "`bottomless create`" in said
    assert "PUT" not in said


def test_where_nothing_is_served_the_address_may_be_that_of_one_service() -> None:
    said = sentence_of(NotFound("nothing is served at this path", code=Code.NOT_FOUND))
    assert "--url leads to all services" in said


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("replicas rm", Code.HOME_LIVE, "`bottomless replicas move`"),
        ("tiers give-up", Code.NOT_FOUND, "`bottomless tiers show` lists the moves"),
        ("drives retire", Code.DRIVE_IN_USE, "`bottomless tiers move` moves it away"),
        ("drives retire", Code.DRIVE_IN_USE, "`bottomless super update --tiers`"),
        ("drives lost", Code.DRIVE_IN_USE, "`bottomless drives retire`"),
        ("replicas move", Code.NOT_OWNER, "append to it first"),
        ("replicas add", Code.NOT_OWNER, "append to it first"),
        ("admin takeover", Code.HOME_LIVE, "`bottomless replicas status`"),
        ("nodes evacuate", Code.NOT_FOUND, "`bottomless nodes ls`"),
    ],
)
def test_what_to_do_after_a_refusal_depends_on_the_command(
    command: str, code: Code, said: str
) -> None:
    told = hint_for(command, code)
    assert told is not None
    assert said in told
    # It is one part of a line whose parts are divided so.
    assert "; " not in told


def test_who_may_not_change_a_partition_is_told_of_its_super_stream() -> None:
    refused = Exists("the stream is a partition", code=Code.PARTITION_OF_SUPER_STREAM)
    assert "`bottomless super update` changes all partitions" in sentence_of(refused)


def test_what_the_code_says_enough_of_has_no_hint_of_its_own() -> None:
    assert hint_for("replicas rm", Code.STREAM_NOT_FOUND) is None
    assert hint_for("describe", Code.NOT_FOUND) is None
