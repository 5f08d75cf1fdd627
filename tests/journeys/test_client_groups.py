"""Programs that share a stream by `client.group` and `tail --group`, on a real server."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from support.command_line import CommandLine
from support.contract import new_stream
from support.guards import remove
from support.served import PATIENT
from support.server import AllInOne
from support.waiting import until

from bottomless.client import AsyncClient, AsyncGroup, Batch, Client
from bottomless.errors import Code, InvalidRequest, WrongOffset

SETTINGS = {**PATIENT, "BOTTOMLESS_MANIFEST_GROUP_CHECK_MS": "100"}
PATIENCE = 120
PROGRAM = """
import sys
from bottomless import Client

with Client(sys.argv[1]) as client:
    with client.group(sys.argv[2], "billing", member=sys.argv[3], lease_seconds=5) as group:
        print("joined", flush=True)
        for batch in group:
            for record in batch.records:
                print(record["offset"], flush=True)
            group.commit()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AllInOne]:
    with AllInOne(tmp_path_factory.mktemp("groups") / "data", SETTINGS) as running:
        yield running


@pytest.fixture
def stream(server: AllInOne) -> str:
    with server.client() as client:
        return new_stream(client).name


def append(server: AllInOne, stream: str, *values: str) -> None:
    with Client(server.url) as client:
        client.append(stream, [{"value": value} for value in values])


def values_of(batch: Batch | None) -> list[str]:
    assert batch is not None
    return [str(record["value"]) for record in batch.records]


async def test_the_next_member_goes_on_when_one_leaves(server: AllInOne, stream: str) -> None:
    async with AsyncClient(server.url) as client:
        await client.append(stream, [{"value": "a"}, {"value": "b"}])
        first = client.group(stream, "billing", member="one")
        second = client.group(stream, "billing", member="two")
        async with second as waiting:
            # Who joined first holds the stream.
            assert values_of(await waiting.poll(PATIENCE)) == ["a", "b"]
            async with first as later:
                assert later.holding == {}
                assert await later.poll(0.1) is None
                await waiting.commit()
                await waiting.close()
                await client.append(stream, [{"value": "c"}])
                assert values_of(await later.poll(PATIENCE)) == ["c"]
                assert list(later.holding) == [0]


async def test_a_member_gives_the_stream_over_after_the_batch_in_hand(
    server: AllInOne, stream: str
) -> None:
    async with AsyncClient(server.url) as client:
        await client.append(stream, [{"value": "a"}])
        async with (
            client.group(stream, "billing", member="one") as one,
            client.group(stream, "billing", member="two") as two,
        ):
            assert values_of(await one.poll(PATIENCE)) == ["a"]
            await client.activate_member(stream, "billing", "two")
            assert await two.poll(0.2) is None, "the first has not ended its batch"

            taking = asyncio.create_task(two.poll(PATIENCE))
            assert await one.poll(0.5) is None
            await client.append(stream, [{"value": "b"}])
            assert values_of(await taking) == ["b"], "what the first did is done"
            assert one.holding == {}
            shown = await client.describe_group(stream, "billing")
            assert shown["partitions"][0]["member"] == "two"
            assert shown["partitions"][0]["next_offset"] == 1


async def test_partitions_of_a_super_stream_are_member_i_mod_n_s_also_when_a_third_joins(
    server: AllInOne,
) -> None:
    """G9: two members, then a third; partition i is member i mod n's, and each record comes."""
    async with AsyncClient(server.url) as client, AsyncExitStack() as joined:
        await client.create_super_stream("g9", partitions=3)
        members: dict[str, AsyncGroup] = {}
        seen: list[str] = []

        async def join(name: str) -> None:
            member = client.group("g9", "billing", member=name, strategy="modulo")
            members[name] = await joined.enter_async_context(member)

        async def append(first: int) -> None:
            records = [{"value": str(n), "key": f"k{n}"} for n in range(first, first + 30)]
            await client.append_super("g9", records)

        async def settled(*names: str, count: int) -> None:
            """Wait until these hold the partitions, and all records have come."""
            while True:
                shown = (await client.describe_group("g9", "billing"))["partitions"]
                held = [one["member"] for one in shown]
                believed = [number in members[one].holding for number, one in enumerate(names)]
                if held == list(names) and all(believed) and len(set(seen)) == count:
                    return
                for member in members.values():
                    batch = await member.poll(0.05)
                    seen.extend(values_of(batch) if batch else [])

        await join("one")
        await append(0)
        await join("two")
        await settled("one", "two", "one", count=30)
        await join("three")
        await append(30)
        await settled("one", "two", "three", count=60)
        holding = [sorted(one.holding) for one in members.values()]
        assert holding == [[0], [1], [2]], "a partition has one holder"


async def test_who_does_not_hold_the_stream_any_more_commits_nothing(
    server: AllInOne, stream: str
) -> None:
    async with AsyncClient(server.url) as client:
        await client.append(stream, [{"value": "a"}, {"value": "b"}])
        async with client.group(stream, "billing", member="one") as one:
            assert values_of(await one.poll(PATIENCE)) == ["a", "b"]
            # The same program again, while the first one is not done.
            async with client.group(stream, "billing", member="one") as again:
                assert values_of(await again.poll(PATIENCE)) == ["a", "b"]
                await again.commit()
                with pytest.raises(WrongOffset) as refused:
                    await one.commit()
                assert refused.value.code is Code.CONSUMER_FENCED
                assert (await client.describe_consumer(stream, "billing"))["next_offset"] == 2


async def test_a_group_that_begins_with_what_comes_leaves_nothing_out_at_a_change(
    server: AllInOne, stream: str
) -> None:
    """Its start is stored before anything is read: the second holder does not begin anew."""
    async with AsyncClient(server.url) as client:
        await client.append(stream, [{"value": "before"}])
        first = client.group(stream, "billing", member="one", start="next")
        await first.start()
        await client.append(stream, [{"value": "a"}])
        # It was not even asked for a batch, and committed nothing of its own.
        await first.close()
        async with client.group(stream, "billing", member="two", start="next") as two:
            assert values_of(await two.poll(PATIENCE)) == ["a"]


async def test_without_the_stored_start_a_change_of_the_holder_leaves_records_out(
    server: AllInOne, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stored(*_: object) -> bool:
        return True

    remove(monkeypatch, "the start that is stored before the first read", stored)
    async with AsyncClient(server.url) as client:
        first = client.group(stream, "billing", member="one", start="next")
        await first.start()
        await client.append(stream, [{"value": "a"}])
        await first.close()
        async with client.group(stream, "billing", member="two", start="next") as two:
            assert await two.poll(0.5) is None


def test_a_blocking_program_is_a_member_as_well(server: AllInOne, stream: str) -> None:
    append(server, stream, "a")
    with Client(server.url) as client:
        with client.group(stream, "billing", member="one") as group:
            assert values_of(group.poll(PATIENCE)) == ["a"]
            assert group.poll(0.1) is None
            assert (group.member, list(group.holding)) == ("one", [0])
        with pytest.raises(RuntimeError, match="has left its group"):
            group.poll(1)


async def test_who_has_not_received_a_batch_is_given_it_again(
    server: AllInOne, stream: str
) -> None:
    """A thread that is interrupted while the batch is on its way to it has not processed it."""
    async with AsyncClient(server.url) as client:
        await client.append(stream, [{"value": "a"}])
        async with client.group(stream, "billing", member="one") as group:
            assert values_of(await group.fetch(0)) == ["a"]
            assert values_of(await group.fetch(0)) == ["a"]
            assert await group.fetch(1, 0.1) is None


def test_a_lease_is_from_five_seconds_to_five_minutes(server: AllInOne) -> None:
    with Client(server.url) as client:
        for seconds in (4.9, 301):
            with pytest.raises(InvalidRequest):
                client.group("orders", "billing", lease_seconds=seconds)


def test_a_program_that_is_killed_is_followed_after_its_lease(
    server: AllInOne, stream: str
) -> None:
    append(server, stream, *"abc")
    programs = [started(server.url, stream, "one")]
    try:
        # Whoever stands still for longer than its lease is given all of it again.
        assert lines(programs[0], 3) == ["0", "1", "2"]
        committed(server, stream, 3)
        programs.append(started(server.url, stream, "two"))
        programs[0].kill()
        append(server, stream, "d")
        assert lines(programs[1], 1) == ["3"]
    finally:
        for program in programs:
            program.kill()
            program.communicate()


def started(url: str, stream: str, name: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", PROGRAM, url, stream, name]
    program = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    assert program.stdout.readline() == "joined\n"
    return program


def lines(program: subprocess.Popen[str], count: int) -> list[str]:
    assert program.stdout is not None
    return [program.stdout.readline().strip() for _ in range(count)]


def committed(server: AllInOne, stream: str, next_offset: int) -> None:
    with server.client() as client:
        path = f"/v1/streams/{stream}/consumers/billing/offset"
        until(lambda: client.get(path).json().get("next_offset") == next_offset, what="the commit")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_of_two_tails_one_writes_and_the_other_goes_on_when_it_ends(
    server: AllInOne, stream: str, tmp_path: Path, number: signal.Signals
) -> None:
    cli = CommandLine(server.url, tmp_path)
    append(server, stream, *"abc")
    words = ("tail", stream, "--group", "billing", "--lease-seconds", 300, "-o", "ndjson")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    first = cli.start(*words, **pipes)
    seen = [read_line(first) for _ in range(3)]
    second = cli.start(*words, **pipes)
    try:
        assert second.stderr is not None
        assert b"joined billing as" in second.stderr.readline()
        committed(server, stream, 3)
        first.send_signal(number)
        assert first.wait(PATIENCE) == 128 + number, "it has left: nobody waits for its lease"
        append(server, stream, *"de")
        seen += [read_line(second) for _ in range(2)]
    finally:
        for program in (first, second):
            program.kill()
            program.communicate()
    assert [line.split(b'"value":"')[1][:1] for line in seen] == [b"a", b"b", b"c", b"d", b"e"]
    rows = cli.json("groups", "describe", stream, "billing", "-o", "json")
    assert rows["partitions"][0]["next_offset"] in (3, 4, 5)
    assert "billing" in cli.ok("groups", "ls", stream)


def read_line(program: subprocess.Popen[bytes]) -> bytes:
    assert program.stdout is not None
    return bytes(program.stdout.readline())
