"""The client's consumers against the real server: killed, restarted, and going on where they were."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.ports import lasting_ports
from support.served import PATIENT
from support.server import AllInOne
from support.waiting import until

from bottomless.client import AsyncClient, Client
from bottomless.errors import Code, NotFound, OffsetGone, StoreError, WrongOffset

PROGRAM = """
import sys
from bottomless import Client

with Client(sys.argv[1]) as client, client.consumer("orders", "billing", commit_seconds=0) as orders:
    for batch in orders:
        for record in batch.records:
            print(record["offset"], record["value"], flush=True)
        if sys.argv[2] == "stay":
            # In the middle of its work for this batch, for ever.
            sys.stdin.read()
"""

INTERRUPTED = """
import sys
from contextlib import suppress
from bottomless import Client

with suppress(KeyboardInterrupt), Client(sys.argv[1]) as client:
    with client.consumer("orders", sys.argv[2]) as orders:
        for batch in orders.tables() if sys.argv[2] == "tables" else orders:
            print(batch.next_offset, flush=True)
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AllInOne]:
    """One that is at the same address after each start."""
    with AllInOne(tmp_path / "data", PATIENT, *lasting_ports(1)) as running:
        yield running


@pytest.fixture
def client(server: AllInOne) -> Iterator[Client]:
    with Client(server.url) as made:
        made.create_stream("orders")
        yield made


def append(client: Client, *values: str) -> None:
    client.append("orders", [{"value": value} for value in values])


def started(url: str, mode: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, url, mode],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def read(program: subprocess.Popen[str], count: int) -> list[str]:
    assert program.stdout is not None
    return [program.stdout.readline().strip() for _ in range(count)]


def end(program: subprocess.Popen[str]) -> None:
    program.kill()
    program.communicate()


def test_a_killed_program_is_given_again_what_it_had_not_finished_and_nothing_else(
    server: AllInOne, client: Client
) -> None:
    append(client, "a", "b")
    first = started(server.url, "on")
    assert read(first, 2) == ["0 a", "1 b"]
    until(lambda: _stored_offset(client) == 2, what="the commit of the first batch")
    end(first)

    append(client, "c", "d")
    second = started(server.url, "stay")
    assert read(second, 2) == ["2 c", "3 d"]
    end(second)
    server.kill()
    server.start()

    third = started(server.url, "on")
    assert read(third, 2) == ["2 c", "3 d"]
    append(client, "e")
    assert read(third, 1) == ["4 e"]
    until(lambda: _stored_offset(client) == 5, what="the commit of the last batch")
    end(third)


def test_a_consumer_outlives_the_server_and_misses_nothing(
    server: AllInOne, client: Client
) -> None:
    outages: list[StoreError] = []
    found: list[str] = []
    with client.consumer("orders", "audit", commit_seconds=0, on_outage=outages.append) as orders:
        for round_number in range(2):
            append(client, *(f"{round_number}-{number}" for number in range(50)))
            while len(found) < 50 * (round_number + 1):
                found += [record["value"] for record in next(orders).records]
            server.kill()
            server.start()
    assert found == [f"{r}-{n}" for r in range(2) for n in range(50)]
    assert outages


def test_ctrl_c_ends_a_loop_over_tables_as_silently_as_one_over_batches(
    server: AllInOne, client: Client
) -> None:
    append(client, "a")
    for kind in ("tables", "batches"):
        with subprocess.Popen(
            [sys.executable, "-c", INTERRUPTED, server.url, kind],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as program:
            assert read(program, 1) == ["1"]
            program.send_signal(signal.SIGINT)
            assert program.communicate(timeout=60) == ("", "")
        assert program.returncode == 0


async def test_an_async_consumer_waits_for_what_comes_and_loses_nothing_by_being_cancelled(
    server: AllInOne, client: Client
) -> None:
    async with (
        AsyncClient(server.url) as async_client,
        async_client.consumer("orders", start="next") as orders,
    ):
        # Each look is cancelled; where the consumer begins is known for sure once something has come.
        while await orders.poll(0.05) is None:
            await async_client.append("orders", [{"value": "before"}])
        await async_client.append("orders", [{"value": "x"}])
        found: list[str] = []
        while "x" not in found:
            found += [record["value"] for record in (await anext(orders)).records]
        assert set(found) <= {"before", "x"}
        assert found.count("x") == 1
        assert await orders.poll(0.2) is None


def test_a_stream_that_was_replaced_or_deleted_or_trimmed_is_told(
    server: AllInOne, client: Client
) -> None:
    append(client, "a")
    first_id = client.describe("orders")["stream_id"]
    with client.consumer("orders") as orders:
        next(orders)
        client.delete_stream("orders")
        with pytest.raises((NotFound, WrongOffset)):
            next(orders)
    client.create_stream("orders")
    with client.consumer("orders", expect_stream_id=first_id) as orders:
        with pytest.raises(WrongOffset) as caught:
            next(orders)
        assert caught.value.code is Code.STREAM_REPLACED


def test_a_position_that_a_trim_passed_during_an_outage_is_an_error_and_no_leap(
    server: AllInOne, client: Client
) -> None:
    client.update_stream("orders", {"fragment": {"max_age_ms": 100}})
    append(client, "a")
    with client.consumer("orders") as orders:
        assert next(orders).next_offset == 1
        # Nothing is asked for while the server is away and while the stream moves on.
        server.kill()
        server.start()
        for value in "bcd":
            append(client, value)
            client.wait_until_stored("orders", timeout_seconds=60)
        until(lambda: _trimmed(client), what="the trim")
        found: list[str] = []
        with pytest.raises(OffsetGone):  # noqa: PT012  # what was on its way comes first
            while True:
                found += [record["value"] for record in next(orders).records]
    assert found in ([], ["b"], ["b", "c"])


def test_who_comes_back_to_a_position_that_was_trimmed_is_told_and_may_go_on_from_the_first(
    client: Client,
) -> None:
    client.update_stream("orders", {"fragment": {"max_age_ms": 100}})
    append(client, "a")
    with client.consumer("orders", "billing") as orders:
        next(orders)
        orders.commit()
    for value in "bcd":
        append(client, value)
        client.wait_until_stored("orders", timeout_seconds=60)
    until(lambda: _trimmed(client), what="the trim")

    for read in client.read, client.read_arrow:
        with pytest.raises(OffsetGone):
            read("orders", 1)
        assert read("orders", 1, on_out_of_range="clamp").next_offset == 4
    with pytest.raises(OffsetGone):
        next(client.arrow_pages("orders", 1))
    with client.consumer("orders", "billing") as orders:
        with pytest.raises(OffsetGone) as caught:
            next(orders)
        assert caught.value.facts["first_offset"] == 3
    client.commit("orders", "billing", caught.value.facts["first_offset"])
    with client.consumer("orders", "billing") as orders:
        assert [record["value"] for record in next(orders).records] == ["d"]


def test_a_consumer_commits_nothing_to_a_stream_that_took_the_name(client: Client) -> None:
    append(client, "a", "b")
    with client.consumer("orders", "billing", auto_commit=False) as orders:
        next(orders)
        client.delete_stream("orders")
        client.create_stream("orders")
        append(client, *"12345")
        with pytest.raises(WrongOffset) as caught:
            orders.commit()
    assert caught.value.code is Code.STREAM_REPLACED
    with client.consumer("orders", "billing") as orders:
        assert next(orders).records[0]["value"] == "1"


def _trimmed(client: Client) -> bool:
    accepted = client.trim("orders", 3)
    client.wait_for_operation(accepted["operation_id"], timeout_seconds=30)
    return client.offsets("orders").first_offset == 3


def _stored_offset(client: Client) -> int | None:
    try:
        offset: int = client.describe_consumer("orders", "billing")["next_offset"]
    except NotFound:
        return None
    return offset
