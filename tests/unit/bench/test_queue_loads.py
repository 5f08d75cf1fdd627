"""Loads of queues: what the workers of `native/work.c` send, against servers that answer in odd ways."""

import shutil
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Final

import orjson
import pytest

from bench.place import CACHE
from bench.pump import Load, Request
from bench.rows.queue_sides import BATCHES, Shape
from bench.servers.bodies_in_sqlite import replaced
from bench.wire import amqp, beanstalk, nats, queues, resp

needs_a_compiler = pytest.mark.skipif(
    not (shutil.which("gcc") or shutil.which("cc")), reason="the generators are C"
)
VALUES: Final = [b"a" * 20, b"b" * 20, b"c" * 20]
Serve = Callable[[socket.socket], object]


def serving(protocol: str, serve: Serve, requests: Sequence[Request], **how: object) -> float:
    """Run a load against a server in a thread; returns how many units were answered."""
    CACHE.mkdir(exist_ok=True)
    ours, theirs = socket.socketpair()
    faults: list[BaseException] = []

    def thread() -> None:
        try:
            serve(theirs)
        except BaseException as error:  # noqa: BLE001 it is raised by the test
            faults.append(error)
            theirs.close()

    server = threading.Thread(target=thread)
    server.start()
    with ours, theirs:
        figure = Load(protocol, requests, [ours], **{"window": 1, **how}).run(0, 0)  # type: ignore[arg-type]
        server.join()
    assert not faults, faults
    return figure.units


def working(protocol: str, serve: Serve, requests: Sequence[Request], cycles: int = 2) -> float:
    return serving(protocol, serve, requests, works=True, until=cycles)


def read(peer: socket.socket, size: int) -> bytes:
    data = peer.recv(size, socket.MSG_WAITALL)
    assert len(data) == size
    return data


def http_request(peer: socket.socket) -> tuple[bytes, dict[str, object]]:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += read(peer, 1)
    size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return head.split()[1], orjson.loads(read(peer, size))


def http_answer(peer: socket.socket, body: object) -> None:
    content = orjson.dumps(body)
    peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(content), content))


@needs_a_compiler
def test_a_worker_acknowledges_by_http_what_it_has_received_and_asks_again_if_that_was_nothing() -> (
    None
):
    acknowledged: list[object] = []

    def serve(peer: socket.socket) -> None:
        for cycle in range(2):
            path, body = http_request(peer)
            assert (path, len(body["messages"])) == (b"/v1/queues/q/messages", 3)  # type: ignore[arg-type]
            http_answer(peer, {"queue_id": "x", "messages": []})
            path, body = http_request(peer)
            assert (path, body["limit"]) == (b"/v1/queues/q/receive", 3)
            http_answer(peer, {"messages": []})
            assert http_request(peer)[0] == path
            receipts = [f"{cycle}-{number}" for number in range(3)]
            http_answer(peer, {"messages": [{"receipt": one, "value": "v"} for one in receipts]})
            path, body = http_request(peer)
            assert path == b"/v1/queues/q/ack"
            acknowledged.append(body)
            http_answer(peer, {"acked": 3})

    requests = [
        Request(queues.publish("q", VALUES), 3),
        Request(queues.receive("q", 3), 3),
        Request(queues.ack_head("q"), 0),
    ]
    assert working("http", serve, requests) == 6
    assert acknowledged == [
        {"receipts": ["0-0", "0-1", "0-2"]},
        {"receipts": ["1-0", "1-1", "1-2"]},
    ]


CONFIRM: Final = (60, 80)
DELIVER: Final = (60, 60)


def frames(peer: socket.socket, count: int) -> list[tuple[int, bytes]]:
    found = []
    for _ in range(count):
        kind, channel, size = struct.unpack(">BHI", read(peer, 7))
        assert channel == amqp.CHANNEL
        found.append((kind, read(peer, size + 1)[:-1]))
    return found


def confirm(tag: int, *, multiple: bool = False) -> bytes:
    return amqp.method(CONFIRM, struct.pack(">QB", tag, multiple))


def delivery(tag: int, value: bytes) -> bytes:
    how = amqp.method(DELIVER, amqp.short("c"), struct.pack(">QB", tag, 0), amqp.short("") * 2)
    head = amqp.frame(amqp.HEADER, 1, struct.pack(">HHQH", 60, 0, len(value), 0))
    return how + head + (amqp.frame(amqp.BODY, 1, value) if value else b"")


@needs_a_compiler
def test_a_worker_counts_confirms_of_amqp_in_any_order_and_deliveries_that_come_before_them() -> (
    None
):
    acks: list[tuple[int, ...]] = []

    def serve(peer: socket.socket) -> None:
        for cycle in range(2):
            sent = frames(peer, 9)
            assert [body for kind, body in sent if kind == amqp.BODY] == VALUES
            first = 3 * cycle + 1
            # The second publish is confirmed by itself, then the first two at once: two in all.
            peer.sendall(confirm(first + 1) + delivery(first, b"one") + delivery(first + 1, b""))
            peer.sendall(confirm(first + 1, multiple=True) + confirm(first + 2, multiple=True))
            late = delivery(first + 2, b"three")
            peer.sendall(late[:-3])
            peer.sendall(late[-3:])
            [(kind, content)] = frames(peer, 1)
            acks.append((kind, *struct.unpack(">HHQB", content)))
        assert peer.recv(1) == b""

    requests = [amqp.publish(VALUES, "", "q"), Request(b"", 3), Request(b"", 0, 0)]
    assert working("amqp", serve, requests) == 6
    assert acks == [(amqp.METHOD, *CONFIRM, 3, 1), (amqp.METHOD, *CONFIRM, 6, 1)]


@needs_a_compiler
def test_the_pump_counts_confirms_of_amqp_in_any_order() -> None:
    def serve(peer: socket.socket) -> None:
        frames(peer, 9)
        heartbeat = struct.pack(">BHI", 8, 0, 0) + amqp.LAST
        peer.sendall(confirm(3) + heartbeat + confirm(2, multiple=True))

    assert serving("amqp", serve, [amqp.publish(VALUES, "", "q")]) == 3


def lines(peer: socket.socket, count: int) -> list[bytes]:
    found = []
    for _ in range(count):
        line = b""
        while not line.endswith(b"\r\n"):
            line += read(peer, 1)
        found.append(line[:-2])
    return found


@needs_a_compiler
def test_a_worker_deletes_the_jobs_that_it_has_reserved() -> None:
    deleted: list[bytes] = []

    def serve(peer: socket.socket) -> None:
        for _ in range(2):
            assert lines(peer, 6)[1::2] == VALUES
            peer.sendall(b"INSERTED 1\r\nINSERTED 2\r\nINSERTED 3\r\n")
            assert lines(peer, 3) == [b"reserve-with-timeout 30"] * 3
            for number, value in enumerate(VALUES, 7):
                peer.sendall(b"RESERVED %d %d\r\n%s\r\n" % (number, len(value), value))
            deleted.extend(lines(peer, 3))
            peer.sendall(b"DELETED\r\n" * 3)

    requests = [beanstalk.put(VALUES), beanstalk.reserve(3), Request(b"", 0, 0)]
    assert working("beanstalk", serve, requests) == 6
    assert deleted == [b"delete 7", b"delete 8", b"delete 9"] * 2


@needs_a_compiler
def test_a_worker_acknowledges_where_each_message_of_nats_says() -> None:
    acks: list[bytes] = []

    def serve(peer: socket.socket) -> None:
        for _ in range(2):
            assert lines(peer, 6)[1::2] == VALUES
            peer.sendall(b"MSG _INBOX.one 1 16\r\n" + b'{"stream": "q" }' + b"\r\n")
            peer.sendall((b"MSG _INBOX.one 1 2\r\n{}\r\n") * 2)
            lines(peer, 2)
            for number in range(3):
                peer.sendall(b"MSG q 1 $JS.ACK.%d 4\r\nbody\r\n" % number)
            acks.extend(lines(peer, 6)[::2])

    requests = [
        nats.publish(VALUES, "q", "_INBOX.one"),
        nats.pull("workers", 3, "q", "_INBOX.one"),
        Request(b"", 0, 0),
    ]
    assert working("nats", serve, requests) == 6
    assert acks == [b"PUB $JS.ACK.%d 4" % number for number in range(3)] * 2


@needs_a_compiler
def test_a_worker_acknowledges_and_deletes_the_entries_of_a_stream_by_their_ids() -> None:
    settled: list[bytes] = []

    def serve(peer: socket.socket) -> None:
        for _ in range(2):
            read(peer, len(requests[0].content))
            peer.sendall(b"$3\r\n1-0\r\n$3\r\n1-1\r\n$3\r\n1-2\r\n")
            read(peer, len(requests[1].content))
            entries = b"".join(
                b"*2\r\n$3\r\n1-%d\r\n*2\r\n$1\r\nv\r\n$3\r\n9-9\r\n" % number
                for number in range(3)
            )
            peer.sendall(b"*1\r\n*2\r\n$1\r\nq\r\n*3\r\n" + entries)
            settled.append(read(peer, len(expected)))
            peer.sendall(b":3\r\n:3\r\n")

    ids = (b"1-0", b"1-1", b"1-2")
    expected = resp.command(b"XACK", b"q", b"g", *ids) + resp.command(b"XDEL", b"q", *ids)
    requests = [resp.add(VALUES, b"q"), resp.take(b"q", b"g", b"c", 3), resp.settle(b"q", b"g")]
    assert working("resp", serve, requests) == 6
    assert settled == [expected] * 2


def test_messages_of_a_load_have_its_size_and_are_all_different() -> None:
    values = BATCHES.values()
    assert {len(value) for value in values} == {1_024}
    assert len(set(values)) == len(values) == 100
    assert Shape(size=10, batch=1).values() == [b"0000000000"]


def test_arguments_of_amqp_say_their_types_and_their_size() -> None:
    content = b"\x01aS\0\0\0\x02xy" + b"\x01bI\0\0\0\x07"
    assert amqp.table({"a": "xy", "b": 7}) == struct.pack(">I", len(content)) + content


def test_each_part_that_the_variant_with_bodies_in_sqlite_replaces_is_there() -> None:
    for module, name, part in replaced():
        there = getattr(module, name)
        assert issubclass(part, there) if isinstance(there, type) else type(part) is type(there)
