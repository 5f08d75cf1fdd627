"""Errors that a newcomer meets first say what to do, in the words of the one who reads them.

Other tests look at codes and places only, so the sentences themselves could say anything.
"""

import os
import socket
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
import structlog

from bottomless.errors import Code, Fault, InvalidRequest, StoreError, Unavailable
from bottomless_server.allinone import locked
from bottomless_server.coordination.base import CoordinationUnavailable
from bottomless_server.core.not_found import stream_not_found
from bottomless_server.core.regressed import coordination_lost, coordination_outdated
from bottomless_server.ingest.records.json_records import read_records
from bottomless_server.node.data_directory import DirectoryLock
from bottomless_server.reader.page_query import JSON, page_query
from bottomless_server.runtime.base.cannot_start import CannotStart
from bottomless_server.runtime.base.settings import CommonSettings
from bottomless_server.runtime.http.app import json_response, problem_response
from bottomless_server.runtime.listener.listeners import bind_tcp
from bottomless_server.runtime.process.parts import stores_told
from unit.ingest.harness import IngestHarness
from unit.reader.harness import ReaderHarness, Sent

NAMES_PROCESSES = Path("/proc/locks").exists()
"""Not every system tells which process holds a lock."""


@pytest.fixture
async def ingest(tmp_path: Path) -> AsyncIterator[IngestHarness]:
    running = await IngestHarness(tmp_path / "ingest").declare()
    await running.start()
    yield running
    await running.aclose()


@pytest.fixture
async def reader() -> AsyncIterator[ReaderHarness]:
    running = ReaderHarness()
    yield running
    await running.aclose()


def fault_of(body: Mapping[str, Any]) -> Fault:
    def encode(value: Any, _: str) -> bytes:
        return orjson.dumps(value)

    with pytest.raises(InvalidRequest) as refused:
        read_records(body, encode)
    [fault] = refused.value.faults
    return fault


def test_an_object_as_value_is_sent_to_the_member_json() -> None:
    fault = fault_of({"records": [{"value": {"id": 7}}]})
    assert fault.pointer == "/records/0/value"
    assert fault.detail == "must be a string; the member json takes any other JSON value"


def test_a_record_that_is_not_in_records_hears_of_both_ways() -> None:
    said = fault_of({"value": "hello"}).detail
    assert "known here: records" in said
    assert "?as=value" in said


def test_a_read_without_a_start_names_starts() -> None:
    with pytest.raises(InvalidRequest, match="offset=first") as refused:
        page_query({}, JSON)
    assert "offset=next" in str(refused.value)


def test_a_stream_that_is_not_there_comes_with_the_way_to_create_it() -> None:
    assert "PUT /v1/streams/{name}" in stream_not_found().message


@pytest.mark.parametrize(
    "error", [coordination_lost(), coordination_outdated("coordination shows less")]
)
def test_lost_coordination_names_the_command_that_mends_it(error: StoreError) -> None:
    assert error.code is Code.COORDINATION_REGRESSED
    assert "`bottomless admin rebuild`" in error.message


async def test_the_log_names_that_command_and_does_not_repeat_it_at_each_renewal(
    ingest: IngestHarness,
) -> None:
    ingest.show_generation(None)
    with structlog.testing.capture_logs() as logs:
        for _ in range(9):
            await ingest.lease.renew()
    told = [entry for entry in logs if entry["log_level"] == "critical"]
    assert [entry["renewals"] for entry in told] == [1, 2, 4, 8]
    assert {entry["command"] for entry in told} == {"bottomless admin rebuild"}

    ingest.show_generation(0)
    await ingest.lease.renew()
    ingest.show_generation(None)
    with structlog.testing.capture_logs() as logs:
        await ingest.lease.renew()
    assert [entry["renewals"] for entry in logs if entry["log_level"] == "critical"] == [1]


def test_a_data_directory_in_use_says_by_whom_and_how_to_take_another(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(CannotStart, match="--data-dir") as refused:
        locked(tmp_path).__enter__()
    assert not NAMES_PROCESSES or f"(process {os.getpid()}, " in str(refused.value)


def test_a_directory_of_a_node_in_use_says_by_whom(tmp_path: Path) -> None:
    with DirectoryLock(tmp_path), pytest.raises(CannotStart, match="directory of its own") as no:
        DirectoryLock(tmp_path)
    assert not NAMES_PROCESSES or f"(process {os.getpid()}, " in str(no.value)


def test_a_port_in_use_says_by_whom_and_how_to_take_another() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotStart, match="--port") as refused:
            bind_tcp("127.0.0.1", port)
    assert f"cannot listen on 127.0.0.1:{port}: another process listens there" in str(refused.value)
    assert not NAMES_PROCESSES or f"(process {os.getpid()}, " in str(refused.value)


@pytest.mark.parametrize(
    ("error", "setting", "shown"),
    [
        (
            CoordinationUnavailable("the coordination store does not answer"),
            {"coordination_url": "redis://:secret@valkey:6379/0"},
            "redis://valkey:6379/0, which is what BOTTOMLESS_COORDINATION_URL names",
        ),
        (
            Unavailable("it cannot be reached", code=Code.OBJECT_STORE_UNAVAILABLE),
            {"store_url": "s3://bucket/prefix?endpoint=http://s3:9000"},
            "s3://bucket/prefix?endpoint=http://s3:9000, which is what BOTTOMLESS_STORE_URL names",
        ),
    ],
)
def test_a_store_that_stops_a_start_is_named_without_its_password(
    error: StoreError, setting: dict[str, Any], shown: str
) -> None:
    with pytest.raises(CannotStart) as refused, stores_told(CommonSettings(**setting)):
        raise error
    assert shown in str(refused.value)
    assert error.message in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_store_of_our_own_has_no_setting_that_could_be_wrong() -> None:
    with pytest.raises(CoordinationUnavailable), stores_told(CommonSettings()):
        raise CoordinationUnavailable("the embedded coordination store does not come up")


async def test_every_answer_in_json_ends_its_line(
    ingest: IngestHarness, reader: ReaderHarness
) -> None:
    """At a terminal the prompt would else stand on the line of the answer."""
    reader.append(Sent(b"text"))
    bodies = {
        "an answer": bytes(json_response({"a": 1}).body),
        "a problem": bytes(problem_response(stream_not_found(), "id").body),
        "an append": (await ingest.append("a")).content,
        "a page": (await reader.get("/records?offset=0")).content,
        "a record": (await reader.get("/records/0", accept="application/json")).content,
    }
    assert {name: body[-2:] for name, body in bodies.items()} == dict.fromkeys(bodies, b"}\n")
