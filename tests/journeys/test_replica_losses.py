"""Three nodes that hold a stream, and what befalls them: RP2 with the real command line, RP3, RP4, RP10,
RP12 to RP14.

Nothing is uploaded unless it is said, so what is read is on the disks of the nodes. How long anybody
waits is printed, and no verdict: leases are short here, and a machine that stands still loses them.
"""

import itertools
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from typing import Any, Final

import httpx
import pytest
from support.command_line import CommandLine
from support.contract import QUICK
from support.replicated import NODES, NOT_NOW, ReplicatedStream, ThreeServers, three_servers
from support.waiting import until

from bottomless.client.tables import frames_body
from bottomless.model.rows import Rows
from bottomless_server.node.directory_watch import EXIT_DIRECTORY_LOST

LINES: Final = 40
"""Before the loss, and as many after it."""
PART_SIZE: Final = 65_536
LARGE: Final = b"x" * 40_000
"""Two of them do not go into one part of a commit."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeServers]:
    # A round is held for as long as a test wants it to be, and not as long as a machine stands still.
    settings = {
        "BOTTOMLESS_INGEST_REPLICA_COMMIT_MS": "2000",
        "BOTTOMLESS_INGEST_REPLICA_STEP_DOWN_MS": "600000",
        "BOTTOMLESS_INGEST_SEGMENT_SIZE_MAX": str(PART_SIZE),
        "BOTTOMLESS_INGEST_GROUP_BYTES_MAX": str(PART_SIZE),
        "BOTTOMLESS_FAULT_POINTS": "1",
    }
    with three_servers(tmp_path_factory.mktemp("replicas"), settings) as nodes:
        yield nodes


@pytest.fixture
def nodes(running: ThreeServers) -> Iterator[ThreeServers]:
    """All of them run, before and afterwards."""
    running.start()
    yield running
    running.links.calm()
    running.start()


class Tail:
    """A `bottomless tail -f` from the first record on, which has shown that one."""

    def __init__(self, cli: CommandLine, stream: str) -> None:
        self.lines: list[str] = []
        self._words = ("tail", stream, "-f", "--from", "first")
        self._cli = cli
        self._start()
        until(self._is_at_work, what="the first line of a tail")

    def _is_at_work(self) -> bool:
        """It gives up at once if it cannot even begin, on a machine that stands still; not later."""
        if not self.lines and self._process.poll() is not None:
            self.end()
            self._start()
        return bool(self.lines)

    def _start(self) -> None:
        self._process: Popen[bytes] = self._cli.start(*self._words, stderr=DEVNULL)
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.decode().rstrip("\n"))

    def wait_for(self, count: int) -> None:
        """Return when it has shown so many lines; it must not end."""
        until(
            lambda: len(self.lines) >= count or self._process.poll() is not None,
            what=f"{count} lines of a tail",
        )
        assert self._process.poll() is None, "an outage is waited out"

    def end(self) -> None:
        """Kill it, and read to its end."""
        self._process.kill()
        self._process.wait()
        self._reading.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Feeding:
    """A `bottomless produce` that is fed line by line, and started again if it gives up."""

    def __init__(self, cli: CommandLine, stream: str) -> None:
        self._words = ("produce", stream, "--producer", "loader", "--resume", "--batch-count", "5")
        self._cli = cli
        self.given = 0
        """How many lines so far."""
        self._process = self._started()

    def give(self, count: int) -> None:
        """So many more lines."""
        for _ in range(count):
            self._write(self.given)
            self.given += 1

    def end(self) -> None:
        """No more lines; returns when all are stored."""
        while True:
            assert self._process.stdin is not None
            self._process.stdin.close()
            if self._process.wait() == 0:
                return
            self._again()

    def _write(self, number: int) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"line {number}\n".encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            self._again()
            self._write(number)

    def _again(self) -> None:
        """It was patient for a minute, on a machine that stood still for longer."""
        assert self._process.stdin is not None
        # What it did not take is still in the pipe's buffer.
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process = self._started()
        for number in range(self.given):
            self._write(number)

    def _started(self) -> Popen[bytes]:
        return self._cli.start(*self._words, stdin=PIPE, stdout=DEVNULL, stderr=DEVNULL)


def test_what_is_acknowledged_lies_on_three_disks_while_each_of_the_replicas_dies_once(
    nodes: ThreeServers,
) -> None:
    # Segments are small, so that there are several.
    stream = ReplicatedStream(nodes, "disks")
    appended = stream.appending("p")
    appended("first", 30)
    stream.until_in_sync(*NODES)
    stream.require_same(*NODES)

    # A follower dies: it is evicted, and appends go on.
    owner = stream.owner
    other, another = stream.others(owner)
    nodes[other].kill()
    appended(owner, 30)
    stream.until_in_sync(owner, another)
    stream.require_same(owner, another)
    assert stream.segments(other) != stream.segments(owner)

    # It comes back and has what it missed, before it counts again.
    nodes[other].start()
    stream.until_in_sync(*NODES)
    stream.require_same(*NODES)
    appended(other, 10)

    # The owner dies and comes back: nothing is missing that was acknowledged.
    nodes[owner].kill()
    nodes[owner].start()
    values = appended(another, 10)
    assert stream.values(other) == values
    stream.until_in_sync(*NODES)
    stream.require_same(*NODES)


def test_produce_and_tail_go_on_when_the_directory_of_a_replicas_owner_is_removed(
    nodes: ThreeServers, tmp_path: Path
) -> None:
    """RP2: the tail shows every line once. The owner lives when its directory goes, and ends by itself."""
    stream = ReplicatedStream(nodes, "orders")
    stream.appended("first", "line of old", producer="setup", sequence=0)
    stream.until_in_sync(*NODES)
    feeding = Feeding(CommandLine(nodes["second"].url, tmp_path), stream.name)
    tail = Tail(CommandLine(nodes["third"].url, tmp_path), stream.name)

    def ended_without_its_directory() -> bool:
        # It goes on making files until it notices.
        shutil.rmtree(nodes["first"].data_dir, ignore_errors=True)
        feeding.give(1)
        return nodes["first"].is_dead

    try:
        feeding.give(LINES)
        tail.wait_for(LINES // 2)
        stream.until_in_sync(*NODES)
        print(f"the owner is {stream.owner}")
        until(ended_without_its_directory, what="the end of a node without its directory")
        assert nodes["first"].wait_dead() == EXIT_DIRECTORY_LOST
        assert "the data directory of this node is gone" in nodes["first"].log()
        shutil.rmtree(nodes["first"].data_dir, ignore_errors=True)
        feeding.give(LINES)
        feeding.end()
        tail.wait_for(1 + feeding.given)
    finally:
        tail.end()
    assert tail.lines == ["line of old", *(f"line {number}" for number in range(feeding.given))]
    assert stream.entries("second") == [], "nothing is given up, and nothing was uploaded"


def test_with_two_of_three_nodes_away_appends_to_replicas_wait_and_are_all_there_later(
    nodes: ThreeServers,
) -> None:
    """RP3: what is published is read all the time."""
    stream = ReplicatedStream(nodes, "away", fragment=QUICK["fragment"])
    stream.appended("first", "published", producer="p", sequence=0)
    until(lambda: stream.record().published_next == 1, what="the first record uploaded")

    def left_alone() -> str | None:
        """The owner, with both others dead. On a machine that stands still one of these may have become
        the owner by then, which is another story: they come back, and it is tried again."""
        stream.until_in_sync(*NODES)
        owner = stream.owner
        for name in stream.others(owner):
            nodes[name].kill()
        if stream.owner == owner:
            return owner
        nodes.start()
        return None

    owner = until(left_alone, what="an owner without the others")
    others = stream.others(owner)
    refused: dict[str, Any] = {}

    def is_refused() -> bool:
        answer = stream.append(owner, "held", producer="p", sequence=1)
        assert answer.status_code in NOT_NOW, answer.text
        refused.update(answer.json())
        return bool(refused["code"] == "not-enough-replicas")

    until(is_refused, what="too few nodes to be noticed")
    assert refused["outcome"] == "none"

    def published() -> dict[str, Any] | None:
        with nodes[owner].client() as client:
            answer = client.get(f"{stream.path}/records", params={"offset": "first"})
            assert answer.status_code in (200, 503), answer.text
            return answer.json() if answer.is_success else None

    page = until(published, what="what is published")
    assert [one["value"] for one in page["records"]] == ["published"]

    # An owner that opens its log anew shows nothing of the tail before enough nodes have it.
    nodes[owner].kill()
    nodes[owner].start()
    page = until(published, what="what is published")
    assert [one["value"] for one in page["records"]] == ["published"]
    assert (page["next_offset"], page["up_to_date"]) == (1, False)
    with nodes[owner].client() as client:
        tail = client.get(f"{stream.path}/records", params={"offset": 1})
        assert (tail.status_code, tail.json()["retryable"]) == (503, True), tail.text
        listed = client.get(f"{stream.path}/fragments").json()
        assert (listed["object_store_next_offset"], len(listed["fragments"])) == (1, 1)

    nodes.start()
    stream.appended(others[0], "held", producer="p", sequence=1)
    stream.appended(others[1], "after", producer="p", sequence=2)
    assert stream.values(others[0]) == ["published", "held", "after"]


def test_a_round_of_replicas_that_was_held_is_shown_once_enough_nodes_are_back(
    nodes: ThreeServers,
) -> None:
    """RP12: though nobody sends it again."""
    numbers = itertools.count()

    def passed() -> bool:
        """Whether it was held, and its owner owned the stream all the time: on a machine that stands still
        another one may go on without the round, and the next stream is tried."""
        stream = ReplicatedStream(nodes, f"held-{next(numbers)}")
        stream.appended("first", "before", producer="p", sequence=0)
        stream.until_in_sync(*NODES)
        owner, epoch = stream.owner, stream.record().epoch
        for name in stream.others(owner):
            nodes[name].kill()
        answer = stream.append(owner, "held", producer="p", sequence=1)
        assert answer.status_code in NOT_NOW, answer.text
        nodes.start()
        stream.appended(owner, "after", producer="q", sequence=0)
        values = stream.values(owner)
        if answer.json()["code"] != "commit-timeout" or stream.record().epoch != epoch:
            return False
        assert answer.json()["outcome"] == "unknown"
        assert values == ["before", "held", "after"]
        return True

    until(passed, what="a round that is held, and shown later")


def test_an_owner_of_replicas_that_slept_through_its_lease_acknowledges_nothing_of_its_own(
    nodes: ThreeServers,
) -> None:
    """RP4: paused beyond its lease, and woken with a request on its way to it."""
    stream = ReplicatedStream(nodes, "slept")
    stream.appended("first", "before", producer="p", sequence=0)
    stream.until_in_sync(*NODES)
    owner = stream.owner
    others = stream.others(owner)
    late: list[int] = []
    with nodes.paused(owner):
        stream.appended(others[0], "meanwhile", producer="p", sequence=1)
        assert stream.owner in others
        sending = threading.Thread(
            target=lambda: late.append(stream.append(owner, "late").status_code)
        )
        sending.start()
    sending.join()
    stream.appended(owner, "after", producer="p", sequence=2)
    # It was refused, or passed on: what is acknowledged is there in any case.
    values = stream.values(owner)
    assert [one for one in values if one != "late"] == ["before", "meanwhile", "after"]
    assert values.count("late") == 1 if late == [200] else late[0] in (503, 504)
    assert values.count("late") <= 1


class Sink:
    """Stages batches of one stream and commits them, as a task of Spark does."""

    def __init__(self, stream: ReplicatedStream) -> None:
        self._stream = stream
        self._number = 0
        self._staged: list[str] = []

    def stage(self, name: str, values: Sequence[bytes]) -> None:
        """A batch of each of these, by way of a node; they are what is committed from now on."""
        named = {"content-type": "application/vnd.bottomless.batches"}
        self._number += 1
        self._staged = []
        for value in values:
            body = frames_body(Rows([value], [0]))

            def staged(body: bytes = body) -> str | None:
                answer = self._ask(name, "staged", content=body, headers=named)
                return None if answer is None else str(answer.json()["staged_id"])

            self._staged.append(until(staged, what="a staged batch"))

    def commit(self, name: str) -> dict[str, int] | None:
        """Ask a node for the commit once; None if that is not now, or it died."""
        named = {
            "content-type": "application/vnd.bottomless.staged+json",
            "producer-id": "job",
            "txn-number": str(self._number),
        }
        answer = self._ask(name, "records", json={"staged": self._staged}, headers=named)
        return None if answer is None else answer.json()

    def _ask(self, name: str, what: str, **options: Any) -> httpx.Response | None:
        try:
            with self._stream.nodes[name].client() as client:
                answer = client.post(f"{self._stream.path}/{what}", **options)
        except httpx.TransportError:
            return None
        assert answer.is_success or answer.status_code in NOT_NOW, answer.text
        return answer if answer.is_success else None


def test_a_staged_commit_of_replicas_is_whole_when_their_owner_dies_after_its_first_part(
    nodes: ThreeServers,
) -> None:
    """RP10: who goes on stores the other two parts, and the commit that comes again is a repeat."""
    stream = ReplicatedStream(nodes, "staged")
    stream.appended("first", "before", producer="p", sequence=0)
    sink = Sink(stream)
    values = ["before"]

    def died() -> str | None:
        """Who died in a commit. On a machine that stands still somebody else may own the stream by
        then: the commit is whole, and the next one is tried."""
        stream.until_in_sync(*NODES)
        owner = stream.owner
        records = [f"{len(values) + number} ".encode() + LARGE for number in range(3)]
        sink.stage(stream.others(owner)[0], records)
        nodes[owner].arm("ingest.commit.after-part")
        values.extend(record.decode() for record in records)
        if (
            until(lambda: sink.commit(owner) or nodes[owner].is_dead, what="a commit or a death")
            is True
        ):
            nodes[owner].wait_dead_at_fault_point()
            return owner
        nodes[owner].kill()
        nodes.start()
        return None

    dead = until(died, what="a death in a commit")
    heir = stream.until_owned(*stream.others(dead))
    told = until(lambda: sink.commit(heir), what="the commit again")
    assert told["count"] + told["duplicates"] == 3
    assert told["duplicates"] >= 1, "what the dead one stored is not stored again"
    assert stream.values(heir) == values

    nodes.start()
    sink.stage(dead, [b"one more"])
    told = until(lambda: sink.commit(dead), what="the next commit")
    # It is a repeat where nobody heard in time that it is stored.
    assert told["count"] + told["duplicates"] == 1
    assert stream.values(dead) == [*values, "one more"]
    stream.until_in_sync(*NODES)
    stream.require_same(*NODES)


def test_nothing_is_cut_of_replicas_when_the_disk_of_their_owner_comes_back_older(
    nodes: ThreeServers, tmp_path: Path
) -> None:
    """RP13: the home restarts from a copy of its log that lacks what the others acknowledged with it."""
    stream = ReplicatedStream(nodes, "older")
    stream.appended("first", "old", producer="p", sequence=0)
    stream.until_in_sync(*NODES)
    owner = stream.owner
    stream.copy_log(owner, tmp_path / "older")
    stream.appended(owner, "newer", producer="p", sequence=1)
    stream.until_in_sync(*NODES)

    nodes[owner].kill()
    other = stream.until_owned(*stream.others(owner))
    shutil.rmtree(stream.log_dir(owner))
    shutil.copytree(tmp_path / "older", stream.log_dir(owner))
    nodes[owner].start()
    stream.appended(other, "after", producer="p", sequence=2)
    stream.until_in_sync(*NODES)
    stream.require_same(*NODES)
    assert stream.values(owner) == ["old", "newer", "after"]


def test_nothing_is_lost_when_all_nodes_die_and_the_owners_disk_comes_back_older(
    tmp_path: Path,
) -> None:
    """RP13, where nobody is left who was told what is committed. Nobody is let go for being late."""
    with three_servers(tmp_path, {"BOTTOMLESS_INGEST_REPLICA_WAIT_MS": "60000"}) as nodes:
        nodes.start()
        stream = ReplicatedStream(nodes, "all-killed")
        stream.appended("first", "old", producer="p", sequence=0)
        stream.until_in_sync(*NODES)
        owner = stream.owner
        stream.copy_log(owner, tmp_path / "older")
        stream.appended(owner, "newer", producer="p", sequence=1)

        for name in NODES:
            nodes[name].kill()
        shutil.rmtree(stream.log_dir(owner))
        shutil.copytree(tmp_path / "older", stream.log_dir(owner))
        nodes.start()
        stream.appended(owner, "after", producer="p", sequence=2)
        assert stream.values(owner) == ["old", "newer", "after"]
        stream.require_same(*NODES)


def test_a_first_append_is_taken_at_once_and_no_node_of_an_older_release_holds_replicas(
    nodes: ThreeServers,
) -> None:
    """RP14."""
    until(lambda: nodes.says_something_of_itself("third"), what="a node that is a member")

    def held_without_it() -> ReplicatedStream | None:
        """One that is claimed while a node says nothing of itself. It does again after any lapse of its
        lease, and owners remember for a second what it said: it may be chosen then."""
        nodes.says_nothing_of_itself("third")
        made = ReplicatedStream(nodes, f"fresh-{next(numbers)}", {"replicas": 3, "min_in_sync": 2})
        made.appended("first", "first of all", producer="p", sequence=0)
        members = made.members()
        if nodes.says_something_of_itself("third") or "third" in members:
            return None
        return made

    numbers = itertools.count()
    stream = until(held_without_it, what="a first append without a node of the release before")
    assert stream.values("third") == ["first of all"]

    nodes["third"].kill()
    nodes["third"].start()
    until(lambda: stream.members() == set(NODES), what="the node that says of itself what it is")
    stream.appended("second", "another", producer="p", sequence=1)
    stream.until_in_sync(*NODES)
    stream.require_same(*NODES)
