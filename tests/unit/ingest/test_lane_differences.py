"""The same bytes by both ways: with the lane and without it a client sees the same, and the same is
stored.

Conversations are made up of usual and hostile requests, pipelined, and sent in pieces that are cut
anywhere. Two services get each of them, one by the lane and one without. Dates and ids differ, and
where a stream ends by the time of an answer: appends on the lane may be stored together.
"""

import asyncio
import gzip
import random
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pytest
from support.lane import Served, served

from bench.wire.http import arrow_body
from bottomless.model.limits import KIB
from unit.ingest.harness import ROUTE
from unit.ingest.test_forms import frame
from unit.runtime.test_runtime_protocol import as_served

JSON = b'{"records": [{"value": "%b"}, {"json": {"a": 1}, "key": "k"}]}'
ARROW, FRAMES = "application/vnd.apache.arrow.stream", "application/vnd.bottomless.batches"
MINIMAL = ("Prefer", "return=minimal")
PASSING = {"date", "request-id", "stream-next-offset", "connection"}
"""Headers that differ: with `connection: close` an end is announced by the last answer that goes
out, which depends on what was answered by then."""
EXAMPLES = 50


class Sent(NamedTuple):
    """One request, and whether anything of its connection is read after it."""

    message: bytes
    last: bool = False
    method: str = "POST"


def request(
    body: bytes | None,
    *headers: tuple[str, str],
    path: str = ROUTE,
    method: str = "POST",
    version: str = "1.1",
    host: str | None = "localhost",
) -> bytes:
    lines = [f"{method} {path} HTTP/{version}"]
    lines += [] if host is None else [f"Host: {host}"]
    lines += [f"{name}: {value}" for name, value in headers]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


def typed(kind: str) -> tuple[str, str]:
    return ("Content-Type", kind)


def chunked(body: bytes) -> bytes:
    head = request(None, typed("application/json"), ("Transfer-Encoding", "chunked"))
    return head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


def usual(rng: random.Random) -> Sent:
    """An append that is stored, in one of the forms that the lane takes."""
    text = b"%d" % rng.randrange(10**6) * rng.choice([1, 1, 50, 900])
    minimal = [MINIMAL] if rng.random() < 0.5 else []
    trace = [("traceparent", f"00-{'ab' * 16}-{'cd' * 8}-01")] if rng.random() < 0.2 else []
    more = (*minimal, *trace)
    records = rng.choice([1, 7, 300])
    key = ("Stream-Key", "k")
    made = (
        request(JSON % text, typed("application/json"), *more),
        request(b'"a"\n{"b": 2}\n', typed("application/x-ndjson"), *more),
        request(text, typed("application/octet-stream"), key, *more),
        request(arrow_body(records), typed(ARROW), *more),
        request(frame([text, b"y"]), typed(FRAMES), *more),
    )
    return Sent(rng.choice(made))


def numbered(rng: random.Random) -> Sent:
    """An append with a condition, which may hold or not."""
    body, kind = JSON % b"n", typed("application/json")
    n = rng.randrange(4)
    made = rng.choice(
        [
            [("Producer-Id", "p"), ("Producer-Epoch", "0"), ("Producer-Seq", str(n))],
            [("Producer-Id", f"q{n}"), ("Txn-Number", str(n))],
            [("Idempotency-Key", f"key-{n}")],
            [("Stream-Expected-Offset", str(n * 2))],
            [("Producer-Id", "p"), ("Producer-Seq", "0"), ("Producer-Start", "any")],
            [("Producer-Seq", "1")],
            [("Idempotency-Key", "k"), ("Producer-Id", "p")],
        ]
    )
    return Sent(request(body, kind, *made))


def unusual(rng: random.Random) -> Sent:
    """What goes the usual way, or is refused."""
    json, body = typed("application/json"), JSON % b"u"
    large = b"x" * (200 * KIB)
    packed = gzip.compress(body, mtime=0)
    many = b'{"records": [' + b'{"value": "y"},' * 9_000 + b'{"value": "y"}]}'
    made = (
        Sent(request(b"{", json)),
        Sent(request(b'{"records": [{"value": 1}]}', json)),
        Sent(request(b"", json)),
        Sent(request(None, json)),
        Sent(request(b"not arrow at all", typed(ARROW))),
        Sent(request(arrow_body(9)[:-40], typed(ARROW))),
        Sent(request(frame([b"a"])[:-3], typed(FRAMES))),
        Sent(request(body, typed("text/csv"))),
        Sent(request(body)),
        Sent(request(body, json, ("Accept", "image/png"))),
        Sent(request(body, json, ("Stream-Key", "k"))),
        Sent(request(body, json, typed("application/json"))),
        Sent(request(body, json, ("Content-Encoding", "br"))),
        Sent(request(packed, json, ("Content-Encoding", "gzip"))),
        Sent(request(body, json, ("Content-Encoding", "gzip"))),
        Sent(request(body, json, path=f"{ROUTE}?as=value")),
        Sent(request(body, json, path=f"{ROUTE}?nothing=1")),
        Sent(request(body, json, path="/v1/streams/nobody/records")),
        Sent(request(body, json, path="/v1/streams/-x/records")),
        Sent(request(body, json, path="/v1/streams/orders%2frecords/records")),
        Sent(request(body, json, path="/v1/streams/%6frders/records")),
        Sent(request(body, json, path="/v1/streams/orders/records/")),
        Sent(request(body, json, host="pages.example")),
        Sent(request(body, json, host=None)),
        Sent(request(body, json, ("Host", "localhost"))),
        Sent(request(body, json, ("Origin", "http://pages.example"))),
        Sent(request(body, json, ("Origin", "http://localhost"))),
        Sent(request(body, json, ("traceparent", "caf\xe9 \x80"))),
        Sent(request(large, typed("application/octet-stream"))),
        Sent(request(many, json)),
        Sent(chunked(body)),
        Sent(request(body, json, ("Upgrade", "h2c"), ("Connection", "Upgrade"))),
        Sent(request(None, method="GET", path="/v1/streams/orders/x"), method="GET"),
        Sent(request(None, method="GET", path="/readyz"), method="GET"),
        Sent(request(body, json, ("Connection", "close")), last=True),
        Sent(request(body, json, version="1.0"), last=True),
        Sent(request(body, json, ("Expect", "100-continue"))),
    )
    return rng.choice(made)


def conversation(rng: random.Random) -> list[Sent]:
    kinds = [usual, usual, usual, numbered, unusual]
    found: list[Sent] = []
    while len(found) < rng.choice([2, 5, 9]) and not (found and found[-1].last):
        found.append(rng.choice(kinds)(rng))
    return found


def pieces(rng: random.Random, sent: Sequence[Sent]) -> list[bytes]:
    whole = b"".join(one.message for one in sent)
    places = [rng.randrange(len(whole)) for _ in range(rng.choice([0, 0, 1, 3, 8]))]
    cuts = [0, *sorted(set(places) - {0}), len(whole)]
    return [whole[start:end] for start, end in pairwise(cuts)]


class Answer(NamedTuple):
    status: int
    headers: list[tuple[str, str]]
    body: Any


async def talk(side: Served, parts: Sequence[bytes], sent: Sequence[Sent]) -> list[Answer]:
    """Send pieces one after the other; returns the answers, as far as they should be the same."""
    reader, writer = await asyncio.open_connection("127.0.0.1", side.listener.port)
    try:
        async with asyncio.timeout(60):
            writing = asyncio.create_task(_write(writer, parts))
            answers = [await _answer(reader) for _ in sent]
            await writing
            if sent[-1].last:
                assert await reader.read() == b""
            return answers
    finally:
        writer.transport.abort()


async def _write(writer: asyncio.StreamWriter, parts: Sequence[bytes]) -> None:
    for part in parts:
        writer.write(part)
        await writer.drain()
        # The other end reads between the pieces, if it likes to.
        for _ in range(4):
            await asyncio.sleep(0)


async def _answer(reader: asyncio.StreamReader) -> Answer:
    while True:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")[:-2]
        status = int(first.split(" ")[1])
        if status != 100:
            break
    pairs = [(name.lower(), value) for name, value in (line.split(": ", 1) for line in lines)]
    headers = dict(pairs)
    assert len(headers) == len(pairs), head
    assert status == 204 or "content-length" in headers, head
    body: Any = await reader.readexactly(int(headers.get("content-length", "0")))
    if "json" in headers.get("content-type", ""):
        body = orjson.loads(body)
        body.pop("request_id", None)
    elif body:
        body = re.sub(rb"[0-9a-f]{28}", b"", body)
    return Answer(status, [pair for pair in pairs if pair[0] not in PASSING], body)


async def compare(directory: Path, seed: int, examples: int) -> int:
    """Have made-up conversations on both ways; returns how many requests took the lane."""
    rng = random.Random(seed)
    async with (
        served(directory / "usual", by_lane=False) as plain,
        served(directory / "lane", by_lane=True) as lane,
    ):
        assert plain.lane is None
        assert lane.lane is not None
        for number in range(examples):
            sent = conversation(rng)
            parts = pieces(rng, sent)
            told = [await talk(side, parts, sent) for side in (plain, lane)]
            assert told[1] == told[0], (seed, number, [one.message[:300] for one in sent])
            for side in (plain, lane):
                side.harness.time.advance(7)
                assert side.harness.service.under_way.count == 0
                assert side.harness.service.room.admission.total == 0
                assert side.listener.connections.body_bytes == 0
        assert await stored(lane) == await stored(plain)
        assert lane.harness.service.counts == plain.harness.service.counts
        assert sorted(counted(lane)) == sorted(counted(plain)) != []
        return lane.lane.taken


async def stored(side: Served) -> list[dict[str, Any]]:
    """All records; those that share a frame have the columns of all of them, which say no more."""
    unsaid = {"key": None, "filter_value": None, "event_time": None, "headers": None, "content": 0}
    return [{**unsaid, **row} for row in await side.harness.rows()]


def counted(side: Served) -> list[bytes]:
    """How many requests were answered, by method, route and status."""
    lines = side.front.metrics.render().splitlines()
    return [line for line in lines if line.startswith(b"bottomless_http_requests_total{")]


@pytest.mark.parametrize("seed", [1, 2])
@as_served
async def test_made_up_conversations_are_the_same_by_both_ways(tmp_path: Path, seed: int) -> None:
    assert await compare(tmp_path, seed, EXAMPLES) > EXAMPLES
