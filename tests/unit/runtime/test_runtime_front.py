"""What stands around applications: labels of routes, ids of requests, descriptors, measured parts."""

import asyncio
import subprocess
import sys
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send
from support.asgi import client_of, scope_of

from bottomless.drives.base import ObjectMissing, Presigning
from bottomless.errors import NotFound
from bottomless.formats.checks import crc32c
from bottomless_server.coordination.memory import MemoryCoordination
from bottomless_server.drives.memory import MemoryDrive
from bottomless_server.runtime.base.settings import CommonSettings
from bottomless_server.runtime.http.app import request_id_of
from bottomless_server.runtime.http.route_templates import OTHER, RouteTemplates
from bottomless_server.runtime.http.tracing import Requests, name_request, passed_on, trace_of
from bottomless_server.runtime.observe.measured_ports import (
    MeasuredCoordination,
    coordination_calls,
    measured_drive,
)
from bottomless_server.runtime.observe.metrics import Metrics
from bottomless_server.runtime.process.front import Front
from bottomless_server.runtime.process.process_limits import connection_count_max

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/v1/streams", "/v1/streams"),
        ("/v1/streams/records", "/v1/streams/{s}"),
        ("/v1/streams/a/records", "/v1/streams/{s}/records"),
        ("/v1/streams/a/records/7", "/v1/streams/{s}/records/{offset}"),
        ("/v1/streams/a/offsets/resolve", "/v1/streams/{s}/offsets/resolve"),
        ("/v1/streams/a/nothing", OTHER),
        ("/v1/streams/a", "/v1/streams/{s}"),
        ("/v1/streams/", "/v1/streams/{s}"),
        ("/v1", OTHER),
        ("/", OTHER),
        ("", OTHER),
        ("/v1/streams/{s}/records/x/y", OTHER),
    ],
)
def test_a_path_is_called_by_its_template_and_by_nothing_a_user_chose(
    path: str, route: str
) -> None:
    templates = RouteTemplates(
        [
            "/v1/streams",
            "/v1/streams/{s}",
            "/v1/streams/{s}/records",
            "/v1/streams/{s}/records/{offset}",
            "/v1/streams/{s}/offsets/resolve",
        ]
    )
    assert templates.find(path) == route


async def test_a_caller_of_ours_says_the_id_of_a_request_and_a_stranger_does_not() -> None:
    async def app(scope: Scope, _: Receive, send: Send) -> None:
        headers = [(b"x-id", request_id_of(scope).encode())]
        await send({"type": "http.response.start", "status": 204, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    front = Front(CommonSettings())
    given = {"request-id": "0123abc"}
    async with (
        client_of(front.internal(app, "x")) as ours,
        client_of(front.public(app, "x")) as all_,
    ):
        inner = await ours.get("/", headers=given)
        assert inner.headers["x-id"] == inner.headers["request-id"] == "0123abc"
        for bad in ("a b", "x" * 65, "a\tb"):
            assert (await ours.get("/", headers={"request-id": bad})).headers["x-id"] != bad
        outer = await all_.get("/", headers=given)
        assert outer.headers["x-id"] == outer.headers["request-id"] != "0123abc"


@pytest.mark.parametrize(
    ("sent", "taken"),
    [
        (TRACEPARENT, True),
        (TRACEPARENT.replace("00-", "01-", 1), False),
        (TRACEPARENT.upper(), False),
        (f"00-{'0' * 32}-b7ad6b7169203331-01", False),
        ("garbage", False),
    ],
)
def test_a_trace_goes_on_where_it_is_one_and_begins_where_it_is_not(sent: str, taken: bool) -> None:
    trace = trace_of(scope_of({"traceparent": sent}))
    assert (trace.trace_id == TRACEPARENT[3:35]) is taken
    assert trace.span_id != TRACEPARENT[36:52]
    assert len(trace.traceparent) == len(TRACEPARENT)


async def test_what_is_done_for_a_request_says_so_until_it_is_answered() -> None:
    later = asyncio.Event()
    seen: list[Any] = []

    async def outlive() -> None:
        await later.wait()
        seen.append((passed_on(), name_request(None, "", {})))

    async def app(scope: Scope, _: Receive, send: Send) -> None:
        seen.append(passed_on())
        seen.append(name_request(None, "", {"event": "a"}))
        seen.append(asyncio.create_task(outlive()))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    around = Requests(access_log=False).around(app, trusted=False)
    async with client_of(around) as client:
        await client.get("/", headers={"traceparent": TRACEPARENT})
    headers, line, task = seen[:3]
    later.set()
    await task
    assert headers["traceparent"].startswith(TRACEPARENT[:36])
    assert line["request_id"] == headers["request-id"]
    assert (line["tenant"], line["actor"]) == ("default", "local")
    assert seen[3] == ({}, {})
    assert passed_on() == {}


def test_the_soft_limit_of_descriptors_becomes_the_hard_one() -> None:
    program = (
        "import resource as r; from bottomless_server.runtime.process.process_limits import *\n"
        "hard = r.getrlimit(r.RLIMIT_NOFILE)[1]; r.setrlimit(r.RLIMIT_NOFILE, (256, hard))\n"
        "said = raise_descriptor_limit()\n"
        "assert said > 256 and r.getrlimit(r.RLIMIT_NOFILE)[0] == said\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert connection_count_max(20_000) < 20_000
    assert connection_count_max(256) == 128


async def test_parts_are_measured_and_promise_the_same() -> None:
    metrics = Metrics()
    drive = measured_drive(MemoryDrive(), metrics)
    assert not isinstance(drive, Presigning)
    await drive.put("a/b", [b"abc", b"d"], crc32c(b"abcd"))
    assert await drive.get("a/b", 1, 2) == b"bc"
    with pytest.raises(ObjectMissing):
        await drive.get("a/c")
    assert [facts.object_key async for facts in drive.list()] == ["a/b"]

    calls = coordination_calls(metrics)
    coordination = MeasuredCoordination(MemoryCoordination(lambda: 0), calls)
    another = MeasuredCoordination(MemoryCoordination(lambda: 0), calls)

    def refuse(_: object) -> Any:
        raise NotFound("decided so")

    with pytest.raises(NotFound):
        await coordination.transact(["k"], refuse)
    assert await coordination.get("k") is None
    assert await another.get("k") is None

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"bottomless_{name}", labels)

    assert value("object_store_calls_total", operation="get", outcome="ok") == 1
    assert value("object_store_calls_total", operation="get", outcome="missing") == 1
    assert value("object_store_calls_total", operation="list", outcome="ok") == 1
    assert value("object_store_written_bytes_total") == 4
    assert value("object_store_read_bytes_total") == 2
    assert value("coordination_calls_total", operation="transact", outcome="other") == 1
    assert value("coordination_call_duration_seconds_count", operation="get") == 2


@pytest.mark.parametrize("wrong", ["*", "pages.example", "https://a/b", "https://a b", "null"])
def test_an_origin_is_written_out(wrong: str) -> None:
    with pytest.raises(ValueError, match="origin"):
        CommonSettings(cors_origins=f"https://a.example,{wrong}")
