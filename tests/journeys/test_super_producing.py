"""Super streams as producers see them: from the client and the command line, on one server. Some 6 s."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from support.command_line import CommandLine
from support.served import PATIENT
from support.server import AllInOne

from bottomless import AsyncClient, Client, Code, InvalidRequest, WrongOffset

KEYS = [f"hello{number}" for number in range(1, 11)]
INDEXES = [1, 0, 1, 2, 0, 2, 0, 1, 0, 2]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AllInOne]:
    with AllInOne(tmp_path_factory.mktemp("super") / "data", PATIENT) as server:
        yield server


@pytest.fixture
def client(running: AllInOne) -> Iterator[Client]:
    with Client(running.url) as connected:
        yield connected


def stored(client: Client, name: str) -> list[str]:
    return [record.text for batch in client.read_super(name) for record in batch.records]


def test_records_go_to_the_partitions_of_their_keys(client: Client) -> None:
    client.create_super_stream("events", partitions=3)
    with client.super_producer("events") as producer:
        deliveries = [producer.send(f"v-{key}", key=key) for key in KEYS]
        producer.flush()
        acks = [delivery.result() for delivery in deliveries]
        assert [ack.partition for ack in acks] == INDEXES
        assert [ack.offset for ack in acks] == [0, 0, 1, 0, 1, 1, 2, 2, 3, 2]
        (first, second, third) = producer.send_table(
            pa.table({"value": [f"t{n}" for n in range(10)], "key": KEYS})
        ).result()
        assert [first.partition, second.partition, third.partition] == [0, 1, 2]
        assert [first.first_offset, first.record_count] == [4, 4]
        with pytest.raises(InvalidRequest, match="must have a key"):
            producer.send("nothing")
        with pytest.raises(InvalidRequest, match="must have a key"):
            producer.send_many(["nothing"])
        with pytest.raises(InvalidRequest, match="must have a key"):
            producer.send_table(pa.table({"value": ["a", "b"], "key": ["c", None]}))
        producer.send_json({"still": "there"}, key="hello1")
    assert len(stored(client, "events")) == 21
    appended = client.append_super("events", [{"value": "a", "key": "hello1"}])
    assert [(part.partition, part.record_indexes) for part in appended.parts] == [(1, [0])]


def test_a_later_run_locks_an_earlier_one_out_and_goes_on(client: Client) -> None:
    client.create_super_stream("runs", partitions=2)
    first = client.super_producer("runs", producer_id="loader")
    first.send("a", key="a")
    first.flush()
    with client.super_producer("runs", producer_id="loader") as second:
        assert second.identity.next_sequence == 1
        assert second.identity.epoch == first.identity.epoch + 1
        second.send("b", key="b")
        second.flush()
        first.send("c", key="c")
        with pytest.raises(WrongOffset) as refused:
            first.flush()
        assert refused.value.code is Code.PRODUCER_FENCED
    first.abort()
    assert sorted(stored(client, "runs")) == ["a", "b"]


def test_the_order_of_a_key_holds_over_many_requests(running: AllInOne) -> None:
    async def run() -> None:
        async with AsyncClient(running.url) as client:
            await client.create_super_stream("order", partitions=3)
            async with client.super_producer(
                "order", batch_bytes=400, linger_seconds=0
            ) as producer:
                sent = [await producer.send(str(n), key=f"k{n % 5}") for n in range(200)]
                acks = [await one for one in sent]
            by_key: dict[bytes | None, list[int]] = {}
            async for batch in client.read_super("order"):
                for record in batch.records:
                    by_key.setdefault(record.key, []).append(int(record.text))
                    assert acks[int(record.text)].offset == record.offset
                    assert acks[int(record.text)].partition == record.partition
            assert by_key == {f"k{rest}".encode(): list(range(rest, 200, 5)) for rest in range(5)}

    asyncio.run(run())


def test_a_super_stream_grows_while_it_is_read(running: AllInOne, client: Client) -> None:
    client.create_super_stream("sales", binding_keys=["amer", "emea"])
    cli = CommandLine(running.url, Path())
    assert cli.ok("super", "grow", "sales", "--binding-key", "apac").endswith(" 3 partitions\n")
    with client.super_producer("sales") as producer:
        assert producer.send("a", key="apac").result().partition == 2
    with pytest.raises(InvalidRequest, match="partition"):
        client.append_super("sales", [{"value": "b", "key": "nowhere"}])
    assert client.route("sales", "nowhere") is None
    client.create_super_stream("hashed", partitions=1)
    assert cli.run("super", "grow", "hashed", "--partitions", 3).exit_code == 2
    assert cli.run("super", "grow", "hashed", "--binding-key", "a").exit_code == 2
    cli.ok("super", "grow", "hashed", "--partitions", 3, "--yes")
    assert [client.route("hashed", key).index for key in KEYS] == INDEXES  # type: ignore[union-attr]


def test_the_command_line_produces_by_its_name(running: AllInOne, tmp_path: Path) -> None:
    cli = CommandLine(running.url, tmp_path)
    cli.ok("super", "create", "clicks", "--partitions", 2)
    lines = "".join(f'{{"id": "u{n}", "n": {n}}}\n' for n in range(8)).encode()
    path = cli.file(lines)
    options = ("--format", "ndjson", "--key-field", "id")
    assert cli.ok("produce", "clicks", path, *options) == "stored 8 records\n"
    assert (
        cli.ok("produce", "clicks", path, *options, "--producer", "loader") == "stored 8 records\n"
    )
    assert len(cli.ok("tail", "clicks", "-n", 100).splitlines()) == 16
    refused = cli.run("produce", "clicks", path, *options, "--producer", "loader", "--resume")
    assert (refused.exit_code, "--resume" in refused.stderr) == (2, True)
    refused = cli.run("produce", "clicks", cli.file(b"no key\n"))
    assert (refused.exit_code, "key" in refused.stderr) == (1, True)
    assert cli.run("produce", "nothing", path).exit_code == 3
