"""What has begun well is not broken off by a server that is away for a moment."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from support.command_line import CommandLine
from support.rabbitmq import GOLDEN
from support.stand_in import OURS, Answer, Asked, standing_in

from bottomless.cli import outages
from bottomless.client import AsyncClient
from bottomless.errors import Code, StoreError, Unavailable

AWAY = b'{"code":"draining","detail":"it stops","retryable":true,"outcome":"none"}'
BOUNDS = {"stream_id": "s", "first_offset": 0, "next_offset": 1, "object_store_next_offset": 0}
PAGE = {"records": [{"offset": 0, "value": "one"}], "next_offset": 1, "up_to_date": True}
DONE: dict[str, Any] = {
    "operation_id": "op_1",
    "kind": "delete-stream",
    "state": "succeeded",
    "progress": {},
    "result": {},
    "error": None,
}


class Away:
    """Is away once for each path whose end is named, and then answers."""

    def __init__(self, *paths: str) -> None:
        self._left = list(paths)

    def answer(self, asked: Asked) -> Answer:
        path = asked.path.partition("?")[0]
        for end in self._left:
            if path.endswith(end):
                self._left.remove(end)
                return 503, AWAY, OURS
        if path.endswith("/resolve"):
            return 200, orjson.dumps({"stream_id": "s", "offset": 0, "clamped": None}), OURS
        if path.endswith("/offsets"):
            return 200, orjson.dumps(BOUNDS), OURS
        if path.endswith("/records"):
            return 200, orjson.dumps(PAGE), OURS
        return 200, orjson.dumps(DONE), OURS


@pytest.mark.parametrize("words", [("read", "s"), ("tail", "s")], ids=" ".join)
def test_a_page_that_is_not_there_for_a_moment_is_asked_for_again(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    with standing_in(Away("/records").answer) as server:
        assert CommandLine(server.url, tmp_path).ok(*words) == "one\n"


def test_a_read_that_cannot_begin_says_so_at_once(tmp_path: Path) -> None:
    with standing_in(Away("/resolve").answer) as server:
        result = CommandLine(server.url, tmp_path).run("read", "s")
    assert (result.exit_code, "draining" in result.stderr) == (5, True)
    assert len(server.asked) == 1


def test_waiting_for_an_operation_outlives_a_restart_of_the_server(tmp_path: Path) -> None:
    with standing_in(Away("/op_1").answer) as server:
        cli = CommandLine(server.url, tmp_path)
        assert cli.ok("operations", "show", "op_1", "--wait", "-o", "name") == "op_1\n"
        assert len(server.asked) == 2
        assert cli.run("operations", "show", "op_1").exit_code == 0


NUMBERED = ("--producer", "p")
NOBODY = b'{"code":"not-owner","detail":"no owner answers","retryable":true,"outcome":"none"}'


class WithoutOwner:
    """Has two pages, and no node says where the stream ends."""

    def __init__(self, *, owned_later: bool) -> None:
        self._owned_later = owned_later

    def answer(self, asked: Asked) -> Answer:
        path, _, query = asked.path.partition("?")
        assert "until_offset" not in query
        if path.endswith("/offsets"):
            return 503, NOBODY, OURS
        if path.endswith("/resolve"):
            return 200, orjson.dumps({"stream_id": "s", "offset": 0, "clamped": None}), OURS
        first = "offset=0" in query
        page = {
            "records": [{"offset": 0 if first else 1, "value": "one" if first else "two"}],
            "next_offset": 1 if first else 2,
            "up_to_date": not first and self._owned_later,
        }
        return 200, orjson.dumps(page), OURS


def test_a_few_records_of_a_stream_that_nobody_owns_are_read(tmp_path: Path) -> None:
    with standing_in(WithoutOwner(owned_later=False).answer) as server:
        result = CommandLine(server.url, tmp_path).run("read", "s", "--limit", "1")
        with_end = CommandLine(server.url, tmp_path).run("read", "s", "--limit", "2")
    assert (result.exit_code, result.stdout) == (0, "one\n")
    assert (with_end.exit_code, with_end.stdout) == (0, "one\ntwo\n")
    assert "no node says now where the stream ends" in result.stderr


def test_a_read_without_an_owner_ends_where_a_later_one_says(tmp_path: Path) -> None:
    with standing_in(WithoutOwner(owned_later=True).answer) as server:
        result = CommandLine(server.url, tmp_path).run("read", "s")
    assert (result.exit_code, result.stdout) == (0, "one\ntwo\n")


def test_a_producer_that_gives_up_says_how_to_go_on(tmp_path: Path) -> None:
    unknown = (
        b'{"code":"commit-timeout","detail":"it took long","retryable":true,"outcome":"unknown"}'
    )
    stored = orjson.dumps(
        {"first_offset": 0, "next_offset": 1, "count": 1, "duplicates": 0, "timestamp": None}
    )

    def answer(asked: Asked) -> Answer:
        if asked.method == "POST" and sum(one.method == "POST" for one in server.asked) > 1:
            return 504, unknown, OURS
        return 200, stored, OURS

    (tmp_path / "lines").write_text("one\ntwo\n")
    with standing_in(answer) as server:
        result = CommandLine(server.url, tmp_path).run(
            "produce", "s", str(tmp_path / "lines"), "--batch-count", "1"
        )
    assert result.exit_code == 5
    assert result.stderr.count("\n") == 2, result.stderr
    given_up, error = result.stderr.splitlines()
    assert "given up: 1 record stored" in given_up
    assert "whether 1 record more are stored is not known" in given_up
    assert "go on with what comes after the first record" in given_up
    assert "commit-timeout" in error


def test_a_producer_that_waits_for_long_says_so_once_and_when_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = list[str]()
    monkeypatch.setattr(outages, "LONG_SECONDS", 0.0)
    monkeypatch.setattr(outages, "tell", said.append)
    stored = orjson.dumps(
        {"first_offset": 0, "next_offset": 1, "count": 1, "duplicates": 0, "timestamp": None}
    )

    def answer(asked: Asked) -> Answer:
        # Away until it is said, however long that takes.
        return (200, stored, OURS) if said or asked.method != "POST" else (503, NOBODY, OURS)

    (tmp_path / "lines").write_text("one\n")
    with standing_in(answer) as server:
        assert CommandLine(server.url, tmp_path).ok("produce", "s", str(tmp_path / "lines"))
    waiting, on = said
    assert waiting.startswith("waiting for the answer to 1 record since ")
    assert on.startswith("goes on after ")


@pytest.mark.parametrize("code", ["not-owner", "not-enough-replicas"])
def test_a_producer_with_numbers_waits_for_an_owner_before_its_first_batch(
    tmp_path: Path, code: str
) -> None:
    nobody = orjson.dumps({"code": code, "detail": "no", "retryable": True, "outcome": "none"})
    told = {"epoch": 1, "last_seq": None, "first_offset": 0, "next_offset": 1, "count": 1}

    def answer(asked: Asked) -> Answer:
        if len(server.asked) == 1:
            return 503, nobody, OURS
        return 200, orjson.dumps({**told, "duplicates": 0, "timestamp": None}), OURS

    (tmp_path / "lines").write_text("one\n")
    with standing_in(answer) as server:
        CommandLine(server.url, tmp_path).ok("produce", "s", str(tmp_path / "lines"), *NUMBERED)
    ends = [asked.path.rpartition("/")[2] for asked in server.asked]
    assert ends == ["epoch", "epoch", "records"]


def test_a_producer_with_numbers_that_cannot_begin_otherwise_says_so_at_once(
    tmp_path: Path,
) -> None:
    (tmp_path / "lines").write_text("one\n")
    with standing_in(Away("/epoch").answer) as server:
        result = CommandLine(server.url, tmp_path).run(
            "produce", "s", str(tmp_path / "lines"), *NUMBERED
        )
    assert (result.exit_code, "draining" in result.stderr) == (5, True)
    assert len(server.asked) == 1


def test_a_producer_with_numbers_waits_for_no_longer_than_for_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outages, "RETRY_SECONDS", 0.0)
    (tmp_path / "lines").write_text("one\n")
    with standing_in(lambda _: (503, NOBODY, OURS)) as server:
        result = CommandLine(server.url, tmp_path).run(
            "produce", "s", str(tmp_path / "lines"), *NUMBERED
        )
    assert (result.exit_code, "not-owner" in result.stderr) == (5, True)
    assert len(server.asked) == 1


def test_an_import_waits_for_an_owner_before_its_first_append(tmp_path: Path) -> None:
    told = {"epoch": 1, "last_seq": None, "first_offset": 0, "next_offset": 1, "count": 1}

    def answer(asked: Asked) -> Answer:
        if len(server.asked) == 1:
            return 503, NOBODY, OURS
        return 200, orjson.dumps({**told, "duplicates": 0, "timestamp": None}), OURS

    with standing_in(answer) as server:
        CommandLine(server.url, tmp_path).ok("import", "rabbitmq", GOLDEN, "--stream", "s")
    ends = [asked.path.rpartition("/")[2] for asked in server.asked]
    assert ends[:3] == ["epoch", "epoch", "records"]


def test_what_a_producer_waits_for_is_said_with_the_last_failure() -> None:
    error = Unavailable("no owner answers", code=Code.NOT_OWNER)
    assert outages.long_wait("the answer", "14:30:00", error) == (
        "waiting for the answer since 14:30:00: no owner answers (not-owner); sent again"
    )
    assert outages.long_wait("the answer", "14:30:00", None) == (
        "waiting for the answer since 14:30:00"
    )


async def test_a_client_tells_of_each_failure_after_which_it_tries_again() -> None:
    heard = list[StoreError]()
    with standing_in(Away("/op_1", "/op_1").answer) as server:
        async with AsyncClient(server.url, on_retry=heard.append) as client:
            assert (await client.operation("op_1"))["state"] == "succeeded"
    assert [error.code for error in heard] == [Code.DRAINING, Code.DRAINING]
