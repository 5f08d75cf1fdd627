"""The client's producers against the real server, which dies, stalls and loses answers on the way."""

import asyncio
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.fault_proxy import running_fault_proxy
from support.faults import Fault, Rule
from support.ports import lasting_ports
from support.server import AllInOne
from support.waiting import until

from bottomless.client import Ack, AsyncClient, Client
from bottomless.client.blocking_producer import Producer
from bottomless.client.delivery import Delivery

RECORDS = r"^/v1/streams/orders/records"
KILL_COUNT = 2


@pytest.fixture
def server(tmp_path: Path) -> AllInOne:
    """One that is at the same address after each start."""
    return AllInOne(tmp_path / "data", port=lasting_ports(1)[0])


def stored(client: Client) -> list[bytes]:
    """Every value of the stream, in order."""
    values: list[Any] = []
    for page in client.arrow_pages("orders", "first"):
        values += page.table.column("value").to_pylist()
    return values


def test_every_record_is_there_once_and_in_order_though_the_server_is_killed(
    server: AllInOne,
) -> None:
    deliveries: list[Delivery] = []
    stop = threading.Event()

    def send(producer: Producer) -> None:
        while not stop.is_set():
            deliveries.append(producer.send(b"%d" % len(deliveries)))

    with server, Client(server.url) as client:
        client.create_stream("orders")
        options = {"batch_bytes": 20_000, "buffer_bytes": 2_000_000}
        with client.producer("orders", in_flight=5, **options) as producer:  # type: ignore[arg-type]
            sending = threading.Thread(target=send, args=(producer,))
            sending.start()
            for _ in range(KILL_COUNT):
                wanted = len(deliveries) + 5000
                until(partial(_has, deliveries, wanted), what="more records")
                # The buffer is never empty here, so this falls into appends on their way.
                server.kill()
                until(lambda: not deliveries[-1].done(), what="a record that nobody takes")
                server.start()
                after = len(deliveries)
                until(deliveries[after - 1].done, what="what was in flight at the kill")
            stop.set()
            sending.join()
        acks = [delivery.result() for delivery in deliveries]
        assert [ack.offset for ack in acks] == list(range(len(acks)))
        assert stored(client) == [b"%d" % number for number in range(len(acks))]


def _has(deliveries: list[Delivery], wanted: int) -> bool:
    return len(deliveries) > wanted


def test_records_whose_answers_were_lost_are_stored_once_and_known_as_duplicates(
    server: AllInOne,
) -> None:
    lost = [
        Rule(Fault.LOSE_REPLY, "POST", RECORDS, after=1, times=2),
        Rule(Fault.TRUNCATE, "POST", RECORDS, after=2, times=2),
        Rule(Fault.LOSE_REQUEST, "POST", RECORDS, after=3, times=2),
        Rule(Fault.CUT_REQUEST, "POST", RECORDS, after=4, times=1),
    ]
    with server, running_fault_proxy(server.url) as proxy, Client(proxy.endpoint) as client:
        client.create_stream("orders")
        with (
            proxy.disturbing(*lost),
            client.producer("orders", batch_bytes=1000, in_flight=3) as producer,
        ):
            deliveries = [producer.send(b"%d" % number) for number in range(2000)]
            producer.flush()
        acks = [delivery.result() for delivery in deliveries]
        assert [ack.offset for ack in acks] == list(range(2000))
        assert any(ack.duplicate for ack in acks)
        assert not all(ack.duplicate for ack in acks)
        assert stored(client) == [b"%d" % number for number in range(2000)]


def test_a_producer_that_begins_again_goes_on_where_the_stream_has_it(server: AllInOne) -> None:
    with server, Client(server.url) as client:
        client.create_stream("orders")
        for _ in range(2):
            with client.producer("orders", producer_id="loader") as producer:
                begin = producer.identity.next_sequence
                producer.send_many([b"%d" % number for number in range(begin, begin + 10)])
        assert stored(client) == [b"%d" % number for number in range(20)]


def test_a_server_that_takes_nothing_makes_sending_block_and_not_grow(server: AllInOne) -> None:
    stall = Rule(Fault.STALL, "POST", RECORDS, times=1)
    sent: list[Delivery] = []

    def send(producer: Producer) -> None:
        with suppress(RuntimeError):
            while True:
                sent.append(producer.send(b"x" * 1000))

    with server, running_fault_proxy(server.url) as proxy:
        with Client(server.url) as direct:
            direct.create_stream("orders")
        with Client(proxy.endpoint) as client:
            proxy.arm(stall)
            producer = client.producer("orders", in_flight=1, buffer_bytes=500_000)
            sending = threading.Thread(target=send, args=(producer,))
            sending.start()
            until(lambda: proxy.count(stall), what="the append that stalls")
            until(lambda: len(sent) > 400, what="a buffer that is full")
            assert not any(delivery.done() for delivery in sent)
            held = len(sent)
            assert held < 500
            proxy.calm()
            # What blocks is told that the producer is closed.
            producer.abort()
            sending.join()
            assert producer._buffer.held_max <= 500_000


async def test_what_is_cancelled_on_its_way_is_whole_or_not_there(server: AllInOne) -> None:
    count = 200
    with server:
        async with AsyncClient(server.url) as client:
            await client.create_stream("orders")

            async def append(name: int) -> None:
                await client.append(
                    "orders", [{"value": f"{name} {number}"} for number in range(count)]
                )

            for name in range(40):
                task = asyncio.create_task(append(name))
                # From before the connection to after the answer.
                for _ in range(name):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            await append(40)
            async with client.producer("orders") as producer:
                assert isinstance(await (await producer.send(b"last 0")), Ack)
            found: list[Any] = []
            async for page in client.arrow_pages("orders", "first"):
                found += page.table.column("value").to_pylist()
    values = [value.decode().split() for value in found]
    assert values.pop() == ["last", "0"]
    groups = [values[start : start + count] for start in range(0, len(values), count)]
    assert all(
        [(name, int(number)) for name, number in group] == [(group[0][0], n) for n in range(count)]
        for group in groups
    )
    assert ["40", "0"] in values
