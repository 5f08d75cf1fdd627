"""Programs that share the partitions of a super stream by `tail --group`: they join, and one is killed.

Each of them is a real process. A partition goes to another program only when its holder has ended the
batch in hand, so nothing is written twice as long as nobody dies, or is too slow for the group.
"""

from collections.abc import Iterator
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import Any, NamedTuple

import httpx
import orjson
import pytest
from support.command_line import CommandLine
from support.ports import lasting_ports
from support.served import PATIENT
from support.server import AllInOne
from support.waiting import until

from bottomless.client import Client

SETTINGS = {**PATIENT, "BOTTOMLESS_MANIFEST_GROUP_CHECK_MS": "100"}
COUNT = "bottomless_manifest_group_"
PARTITIONS = 4
MORE = 40
"""Records that are appended at a time."""


class Written(NamedTuple):
    """A record that a program wrote."""

    partition: int
    offset: int


class Tail:
    """A program that writes what it holds of a super stream into a file."""

    def __init__(self, cli: CommandLine, stream: str, directory: Path, name: str) -> None:
        self._out, self._err = directory / f"{name}.out", directory / f"{name}.err"
        words = ("tail", stream, "--group", "billing", "--lease-seconds", 5, "-o", "ndjson")
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process: Popen[bytes] = cli.start(*words, stdin=DEVNULL, stdout=out, stderr=err)

    @property
    def member(self) -> str:
        """Its name in the group; empty before it has joined."""
        joined = [line for line in self._err.read_text().splitlines() if "joined billing" in line]
        return joined[0].split()[-1] if joined else ""

    def written(self) -> list[Written]:
        """The records of all lines that are there to their ends."""
        whole, _, _ = self._out.read_bytes().rpartition(b"\n")
        read = [orjson.loads(line) for line in whole.splitlines()]
        return [Written(one["partition"], one["offset"]) for one in read]


class Programs:
    """All that were started, and the super stream that they share."""

    def __init__(self, server: AllInOne, directory: Path, stream: str, metrics_port: int) -> None:
        self.client = Client(server.url)
        self.metrics_port = metrics_port
        self.stream = stream
        self.tails: list[Tail] = []
        self.cli = CommandLine(server.url, directory)
        self._directory = directory
        self._appended = 0

    def start(self) -> Tail:
        tail = Tail(self.cli, self.stream, self._directory, f"tail-{len(self.tails)}")
        self.tails.append(tail)
        return tail

    def append(self) -> None:
        numbers = range(self._appended, self._appended + MORE)
        records = [{"value": str(number), "key": f"k{number}"} for number in numbers]
        self.client.append_super(self.stream, records)
        self._appended += MORE

    def shown(self) -> list[dict[str, Any]]:
        """The partitions, as the group shows them."""
        shown: list[dict[str, Any]] = self.client.describe_group(self.stream, "billing")[
            "partitions"
        ]
        return shown

    def all_written(self) -> list[Written]:
        return [one for tail in self.tails for one in tail.written()]

    def await_shared(self, *tails: Tail) -> None:
        """Wait until these programs hold the partitions, and have committed all that there is."""

        def shared() -> bool:
            shown = self.shown()
            holders = {one["member"] for one in shown}
            done = all(one["next_offset"] is not None and one["lag_records"] == 0 for one in shown)
            names = {tail.member for tail in tails}
            return done and holders == names and not any(one["following"] for one in shown)

        until(shared, what="all records to be committed by these programs")
        assert len(set(self.all_written())) == self._appended

    def was_pushed(self, deaths: int = 0) -> bool:
        """Whether a program was so slow that what it held was taken from it."""
        lines = httpx.get(f"http://127.0.0.1:{self.metrics_port}/metrics").text.splitlines()
        counts = {
            line.split()[0]: float(line.split()[1]) for line in lines if line.startswith(COUNT)
        }
        forced, expired = counts[f"{COUNT}forced_releases_total"], counts[f"{COUNT}expiries_total"]
        return forced > 0 or expired > deaths

    def close(self) -> None:
        self.client.close()
        for tail in self.tails:
            tail.process.kill()
            tail.process.wait()


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    (port,) = lasting_ports(1)
    settings = {**SETTINGS, "BOTTOMLESS_METRICS_LISTEN": f"127.0.0.1:{port}"}
    with AllInOne(tmp_path / "data", settings) as server:
        running = Programs(server, tmp_path, "events", port)
        try:
            running.client.create_super_stream("events", partitions=PARTITIONS)
            yield running
        finally:
            running.close()


def test_programs_that_come_and_die_write_each_record_and_none_twice_but_the_batch_in_hand(
    programs: Programs,
) -> None:
    first, second = programs.start(), programs.start()
    until(lambda: first.member and second.member, what="both to join")
    programs.append()
    programs.await_shared(first, second)

    third = programs.start()
    programs.append()
    programs.await_shared(first, second, third)
    if not programs.was_pushed():
        assert len(programs.all_written()) == 2 * MORE, "nobody died, and something came twice"

    shown = programs.cli.json("groups", "describe", "events", "billing")
    assert [one["stream"] for one in shown["partitions"]] == [f"events-{n}" for n in range(4)]
    assert programs.cli.ok("groups", "ls", "events", "-o", "name") == "billing\n"
    refused = programs.cli.run("groups", "rm", "events", "billing", "--yes")
    assert "group-not-empty" in refused.stderr

    held = until(
        lambda: [one for one in programs.shown() if one["member"] == first.member],
        what="a partition of the first program",
    )
    committed = {one["partition"]: one["next_offset"] for one in programs.shown()}
    programs.append()
    first.process.kill()
    first.process.wait()
    programs.append()
    programs.await_shared(second, third)

    written = programs.all_written()
    twice = {one for one in written if written.count(one) > 1}
    if not programs.was_pushed(deaths=1):
        assert all(one.offset >= committed[one.partition] for one in twice)
        by_first = set(first.written())
        assert all(one in by_first and one.partition in numbers(held) for one in twice)

    # And what comes by growth is theirs, too.
    programs.client.grow_super_stream("events", partitions=PARTITIONS + 2, accept_rehash=True)
    programs.append()
    programs.await_shared(second, third)
    assert {one.partition for one in programs.all_written()} == set(range(PARTITIONS + 2))


def numbers(partitions: list[dict[str, Any]]) -> set[int]:
    return {one["partition"] for one in partitions}
