"""Super streams as users see them: made, read as one and deleted, from the client and the command line.

Some 6 s on one server. Records go to the partitions by themselves, which are streams.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.command_line import CommandLine
from support.served import PATIENT
from support.server import AllInOne

from bottomless import AsyncClient, Client, Exists, InvalidRequest, NotFound, Record
from bottomless.client import MergedBatch

KEYS = [f"hello{number}" for number in range(1, 11)]
INDEXES = [1, 0, 1, 2, 0, 2, 0, 1, 0, 2]
"""Of these keys among three partitions (scenario P1)."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AllInOne]:
    with AllInOne(tmp_path_factory.mktemp("super") / "data", PATIENT) as server:
        yield server


@pytest.fixture
def client(running: AllInOne) -> Iterator[Client]:
    with Client(running.url) as connected:
        yield connected


@pytest.fixture
def cli(running: AllInOne, tmp_path: Path) -> CommandLine:
    return CommandLine(running.url, tmp_path)


def fill(client: Client, name: str, values: range) -> list[str]:
    """Append each value to the partition of its rest, one request each; tell the order of all.

    Two requests in one millisecond have one timestamp, and a clock that is set back gives the later
    one an older one: the order is that of timestamps, then of partitions, not that of the values.
    """
    count = len(client.partitions(name))
    placed: list[tuple[int, int, str]] = []
    for value in values:
        index = value % count
        done = client.append(f"{name}-{index}", [{"value": str(value), "key": str(index)}])
        assert done.timestamp is not None
        placed.append((done.timestamp, index, str(value)))
    return [text for _, _, text in sorted(placed, key=lambda one: one[:2])]


def texts(batches: Iterator[MergedBatch]) -> list[str]:
    return [record.text for batch in batches for record in batch.records]


def in_order(records: list[Record]) -> bool:
    """Whether records of each partition are in their order."""
    seen: dict[int | None, int] = {}
    for one in records:
        if one.offset <= seen.get(one.partition, -1):
            return False
        seen[one.partition] = one.offset
    return True


def test_a_super_stream_is_made_routed_and_deleted(client: Client) -> None:
    made = client.create_super_stream("events", partitions=3, config={"labels": {"team": "shop"}})
    assert (
        client.create_super_stream("events", partitions=3, config={"labels": {"team": "shop"}})
        == made
    )
    assert [one.stream for one in client.partitions("events")] == [f"events-{n}" for n in range(3)]
    routed = [client.route("events", key) for key in KEYS]
    assert [one.index for one in routed if one is not None] == INDEXES
    assert client.route("events", b"hello1") == routed[0]
    with pytest.raises(Exists):
        client.create_super_stream("events", partitions=4)
    with pytest.raises(InvalidRequest):
        client.create_super_stream("other", partitions=4, binding_keys=["a"])
    changed = client.update_super_stream("events", {"labels": {"team": None}})
    assert changed["labels"] == {}
    # Other tests have made others on this server, in whatever order they run.
    assert "events" in [one["name"] for one in client.list_super_streams()]
    assert client.delete_super_stream("events")["state"] == "deleting"
    with pytest.raises(NotFound):
        client.describe_super_stream("events")
    with pytest.raises(NotFound):
        client.read("events-0", "first")


def test_it_is_read_as_one_in_the_order_of_timestamps(client: Client) -> None:
    client.create_super_stream("rides", partitions=3)
    fill(client, "rides", range(30))
    batches = list(client.read_super("rides"))
    records = [record for batch in batches for record in batch.records]
    assert sorted(int(one.text) for one in records) == list(range(30))
    times = [one.timestamp for one in records]
    assert times == sorted(times)
    assert in_order(records)
    ends = client.super_positions("rides")
    assert batches[-1].positions == ends == {f"rides-{n}": 10 for n in range(3)}
    # From positions on there is what came after them.
    client.append("rides-1", [{"value": "more"}])
    assert texts(client.read_super("rides", ends)) == ["more"]
    with pytest.raises(NotFound, match=r"this is a super stream.* read_super") as read:
        client.read("rides", "first")
    assert read.value.facts["super_id"] == client.describe_super_stream("rides")["super_id"]
    with pytest.raises(NotFound, match="append_super write"):
        client.append("rides", [{"value": "of no partition"}])
    with pytest.raises(InvalidRequest, match="an offset is a place in one partition"):
        list(client.read_super("rides", 3))
    with pytest.raises(InvalidRequest, match="no partition"):
        list(client.read_super("rides", {"other-1": 3}))


def test_a_consumer_goes_on_in_each_partition(client: Client) -> None:
    client.create_super_stream("trips", partitions=3)
    fill(client, "trips", range(9))
    with client.super_consumer("trips", "billing") as consumer:
        first = [record.text for record in next(consumer).records]
        while len(first) < 9:
            first += [record.text for record in next(consumer).records]
        consumer.commit()
        assert consumer.positions == {f"trips-{n}": 3 for n in range(3)}
        assert consumer.poll(0.0) is None
    fill(client, "trips", range(9, 12))
    with client.super_consumer("trips", "billing") as consumer:
        again: list[str] = []
        while len(again) < 3:
            again += [record.text for record in next(consumer).records]
    assert sorted(map(int, first + again)) == list(range(12))
    # The last batch was not confirmed, so it comes once more.
    with client.super_consumer("trips", "billing") as consumer:
        repeated = next(consumer)
    assert {record.text for record in repeated.records} <= set(again)


def test_who_follows_is_given_what_comes_to_any_partition(running: AllInOne) -> None:
    async def run() -> None:
        async with AsyncClient(running.url) as client:
            await client.create_super_stream("taps", partitions=2)
            async with client.super_consumer("taps", start="next") as consumer:
                assert await consumer.poll(0.0) is None
                # Where it begins is known for sure once something has come.
                while await consumer.poll(0.05) is None:
                    await client.append("taps-0", [{"value": "before"}])
                for number in range(6):
                    await client.append(f"taps-{number % 2}", [{"value": str(number)}])
                    came: list[Record] = []
                    while not came:
                        batch = await anext(consumer)
                        came = [one for one in batch.records if one.text != "before"]
                    assert [(one.text, one.partition) for one in came] == [
                        (str(number), number % 2)
                    ]
                await client.delete_super_stream("taps")
                with pytest.raises(NotFound):
                    await anext(consumer)

    asyncio.run(run())


def test_the_command_line_does_the_same(cli: CommandLine, client: Client, tmp_path: Path) -> None:
    created = cli.ok("super", "create", "shops", "--partitions", 2, "--max-age", "7d")
    assert created.startswith("shops ")
    assert created.endswith(" 2 partitions\n")
    assert "shops" in cli.ok("super", "ls", "-o", "name").split()
    assert "shops-1" in cli.ok("super", "describe", "shops")
    assert cli.json("super", "describe", "shops")["retention"]["max_age"] == "7D"
    ordered = fill(client, "shops", range(8))
    assert cli.ok("tail", "shops", "-n", 3).split() == ordered[-3:]
    assert cli.ok("tail", "shops", "--from", "first").split() == ordered
    newest = str(int(ordered[-1]) % 2)
    assert cli.ok("tail", "shops", "-n", 1, "--details").split()[:2] == [newest, "3"]
    assert cli.ok("tail", "shops", "--consumer", "billing").split() == ordered
    assert cli.ok("tail", "shops", "--consumer", "billing") == ""
    refused = cli.run("tail", "shops", "--from", "3")
    assert (refused.exit_code, "in one partition" in refused.stderr) == (2, True)
    assert cli.ok("read", "shops").split() == ordered
    assert cli.ok("read", "shops", "--limit", 3, "-f", "%s,") == "".join(
        f"{text}," for text in ordered[:3]
    )
    assert cli.ok("read", "shops", "--from", "stored", "--consumer", "billing") == ""
    into = tmp_path / "shops.csv"
    assert cli.ok("read", "shops", "-o", "csv", "--to", into) == "wrote 8 records\n"
    assert len(into.read_text().splitlines()) == 9
    refused = cli.run("tail", "shops", "--lease-seconds", 5)
    assert (refused.exit_code, "goes with --group" in refused.stderr) == (2, True)
    refused = cli.run("tail", "shops", "--group", "billing", "--from", "3")
    assert (refused.exit_code != 0, "one partition" in refused.stderr) == (True, True)
    for words, said in (
        (("--from", "3"), "in one partition"),
        (("--until", "last"), "goes with one partition"),
        (("-o", "parquet", "--to", into), "Spark"),
    ):
        refused = cli.run("read", "shops", *words)
        assert (refused.exit_code, said in refused.stderr) == (2, True), refused.stderr
    assert cli.run("read", "nothing").exit_code == 3
    assert cli.run("tail", "nothing").exit_code == 3
    assert cli.run("super", "create", "more").exit_code == 2
    assert "2 partitions" in cli.ok("super", "rm", "shops", "--dry-run")
    cli.ok("super", "rm", "shops", "--yes")
    assert cli.run("super", "describe", "shops").exit_code == 3


def test_tail_of_a_super_stream_goes_on_as_records_come(cli: CommandLine, client: Client) -> None:
    client.create_super_stream("doors", partitions=2)
    ordered = fill(client, "doors", range(4))
    with cli.start("tail", "-f", "doors", "-n", 2) as program:
        assert program.stdout is not None
        assert [program.stdout.readline() for _ in range(2)] == [
            f"{text}\n".encode() for text in ordered[-2:]
        ]
        fill(client, "doors", range(4, 6))
        assert sorted(program.stdout.readline() for _ in range(2)) == [b"4\n", b"5\n"]
        program.terminate()
