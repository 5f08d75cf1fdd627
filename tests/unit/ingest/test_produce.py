"""`POST /produce`: each partition is an ordinary append, with all that this promises."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send
from support.asgi import client_of, on_tcp

from bottomless.errors import Exists, NotFound
from bottomless.model.config import StreamConfig
from bottomless.model.names import TENANT_DEFAULT, FullName, StreamId, StreamName
from bottomless.model.stream import StreamRecord, StreamState
from bottomless_server.core.principal import Principal
from bottomless_server.protocol.peer import PeerAnswer
from bottomless_server.protocol.registry import encode_made
from bottomless_server.runtime.base.principal import note_principal
from bottomless_server.runtime.http.app import wrap
from bottomless_server.runtime.http.tracing import Requests
from bottomless_server.runtime.identity.audit import Audited, note_audited
from bottomless_server.runtime.process.rate_limits import Policy, RateLimits
from unit.ingest.harness import IngestHarness, SmallManifest, problem

IDS: Final = [StreamId(f"0198d2a4-5b1e-7c3a-9a51-{number:012x}") for number in range(20)]


class CreatingManifest(SmallManifest):
    """It also makes streams, one for each name however many ask at once."""

    made: list[str]

    async def call(self, method: str, path: str, /, **asked: Any) -> PeerAnswer:
        if method != "PUT" or "by-name" not in path:
            return await super().call(method, path, **asked)
        assert asked["body"] == {"profile": "leaderless"}
        name = FullName(str(asked["params"]["tenant"]), StreamName(path.rsplit("/", 1)[1]))
        try:
            await self._streams.find(name)
        except NotFound:
            if "taken" in name.name:
                await self.create(name)
                raise Exists("there is another one") from None
            await self.create(name)
            return PeerAnswer(200, {}, encode_made(created=True))
        return PeerAnswer(200, {}, encode_made(created=False))

    async def create(self, name: FullName) -> None:
        self.made.append(name.name)
        stream_id = IDS[10 + len(self.made)]
        record = StreamRecord(
            stream_id, name.name, name.tenant, StreamState.ACTIVE, 0, StreamConfig()
        )
        await self._streams.create(record)


class BrokerHarness(IngestHarness):
    """Streams `t-0` to `t-2`, as partitions."""

    def __init__(self, data_dir: Path, before: IngestHarness | None = None, **given: Any) -> None:
        super().__init__(data_dir, before, broker=True, **given)

    async def declare_all(self) -> None:
        for number in range(3):
            name = StreamName(f"t-{number}")
            record = StreamRecord(
                IDS[number], name, TENANT_DEFAULT, StreamState.ACTIVE, 0, StreamConfig()
            )
            await self.streams.create(record)

    async def produce(self, *partitions: dict[str, Any]) -> httpx.Response:
        return await self.client.post("/produce", json={"topic_partitions": partitions})


def to(partition: int, *records: Any, topic: str = "t", **more: Any) -> dict[str, Any]:
    return {"topic": topic, "partition": partition, "records": list(records), **more}


def results(answer: httpx.Response) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = answer.json()["results"]
    return found


def kinds(answer: httpx.Response) -> list[str | None]:
    return [one.get("error_type") for one in results(answer)]


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[BrokerHarness]:
    made = BrokerHarness(tmp_path / "ingest")
    await made.declare_all()
    await made.start()
    yield made
    await made.aclose()


async def test_what_is_off_is_not_there(harness: IngestHarness) -> None:
    for method, path in (("POST", "/produce"), ("GET", "/produce"), ("GET", "/health")):
        answer = await harness.client.request(method, path, json={})
        assert problem(answer) == (404, "not-found")


async def test_partitions_are_appended_to_and_told_in_their_order(broker: BrokerHarness) -> None:
    answer = await broker.produce(to(2, "a", {"base64": "/w=="}), to(0, "b"))

    assert answer.status_code == 200
    assert answer.json() == {
        "results": [
            {
                "topic": "t",
                "partition": partition,
                "ok": True,
                "start_offset": 0,
                "end_offset": count,
                "count": count,
                "index_key": f"{IDS[partition]}:0",
                "wal_uri": f"urn:bottomless:wal:{IDS[partition]}:0-{count}",
            }
            for partition, count in ((2, 2), (0, 1))
        ],
        "success_count": 2,
        "error_count": 0,
    }


async def test_what_failed_for_one_is_not_undone_for_another(broker: BrokerHarness) -> None:
    answer = await broker.produce(
        to(0, "a"),
        to(9, "a"),
        to(1, "a", expected_offset=5),
        to(2, "x" * (1024 * 1024 + 1)),
        to(0, "a", topic="../t"),
        to(1, "a", topic="u", producer={"id": "p", "epoch": 0, "seq": 7}),
    )

    assert answer.status_code == 409
    assert kinds(answer) == [
        None,
        "UnknownPartition",
        "OffsetMismatch",
        "InvalidBatch",
        "UnknownPartition",
        "UnknownPartition",
    ]
    assert [one.get("code") for one in results(answer)[1:5]] == [
        "stream-not-found",
        "offset-mismatch",
        "record-too-large",
        "bad-name",
    ]
    assert (answer.json()["success_count"], answer.json()["error_count"]) == (1, 5)
    assert {one["outcome"] for one in results(answer)[1:]} == {"none"}
    assert results(answer)[2]["high_watermark"] == 0
    again = await broker.produce(to(0, "b"), to(1, "b"), to(2, "b"))
    assert [one["start_offset"] for one in results(again)] == [1, 0, 0]


async def test_a_repeat_is_known_also_where_the_original_came_as_an_ordinary_append(
    broker: BrokerHarness,
) -> None:
    sender = {"id": "p", "epoch": 0, "seq": 0}
    ordinary = await broker.client.post(
        "/v1/streams/t-0/records",
        content=b'{"records":[{"value":"a"},{"value":"b"}]}',
        headers={
            "content-type": "application/json",
            "producer-id": "p",
            "producer-epoch": "0",
            "producer-seq": "0",
        },
    )
    assert ordinary.status_code == 200
    repeat = await broker.produce(to(0, "a", "b", producer=sender))
    assert (repeat.status_code, results(repeat)[0]["start_offset"]) == (200, 0)
    after = await broker.produce(to(0, "c", producer={**sender, "seq": 2}))
    assert (results(after)[0]["start_offset"], results(after)[0]["end_offset"]) == (2, 3)

    gap = await broker.produce(to(0, "d", producer={**sender, "seq": 9}))
    assert (gap.status_code, kinds(gap)) == (409, ["ProducerRejected"])


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b'{"topic_partitions": []}',
        b'{"topic_partitions": [{"topic": "t", "partition": 0, "records": []}]}',
        b'{"topic_partitions": [{"topic": "t", "partition": true, "records": ["a"]}]}',
        b'{"topic_partitions": [{"topic": "", "partition": 0, "records": ["a"]}]}',
        b'{"topic_partitions": [{"topic": "t", "partition": 0, "records": ["\\ud800"]}]}',
        b'{"topic_partitions": [{"topic": "t", "partition": 1e999, "records": ["a"]}]}',
        b'{"topic_partitions": [{"topic": "t", "partition": 0, "records": ["a"], "x": 1}]}',
        b'{"topic_partitions": [{"topic": "t", "partition": 0, "records": [{"base64": "A"}]}]}',
        b'{"topic_partitions": [%s, %s]}'
        % ((b'{"topic": "t", "partition": 0, "records": ["a"]}',) * 2),
    ],
)
async def test_a_request_that_is_wrong_is_400_and_nothing_is_written(
    broker: BrokerHarness, body: bytes
) -> None:
    headers = {"content-type": "application/json"}
    answer = await broker.client.post("/produce", content=body, headers=headers)
    status, code = problem(answer)
    assert (status, code in ("malformed-json", "bad-parameter")) == (400, True)
    after = await broker.produce(to(0, "b"))
    assert results(after)[0]["start_offset"] == 0


async def test_other_methods_forms_and_sizes_are_refused(broker: BrokerHarness) -> None:
    assert problem(await broker.client.get("/produce")) == (405, "method-not-allowed")
    text = {"content-type": "text/plain"}
    assert problem(await broker.client.post("/produce", content=b"{}", headers=text))[0] == 415
    large = b" " * (8 * 1024 * 1024 + 1)
    answer = await broker.client.post(
        "/produce", content=large, headers={**text, "content-type": "application/json"}
    )
    assert problem(answer) == (413, "body-too-large")
    assert problem(await broker.client.post("/produce?a=1", json={})) == (400, "unknown-parameter")


async def test_all_held_back_is_503_with_a_wait_and_some_is_409(tmp_path: Path) -> None:
    broker = BrokerHarness(tmp_path / "ingest", ingest_disk_bytes_max=1)
    await broker.declare_all()
    await broker.start()
    assert (await broker.produce(to(0, "a"))).status_code == 200

    held = await broker.produce(to(0, "a"), to(1, "a"))
    some = await broker.produce(to(0, "a"), to(9, "a"))
    await broker.aclose()
    assert (held.status_code, kinds(held)) == (503, ["BackPressureRejected"] * 2)
    assert int(held.headers["retry-after"]) > 0
    assert all((one["code"], one["retryable"]) == ("disk-bound", True) for one in results(held))
    assert (some.status_code, kinds(some)) == (409, ["BackPressureRejected", "UnknownPartition"])
    assert "retry-after" not in some.headers


async def test_a_bug_of_one_partition_is_its_own(
    broker: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = broker.service.names.find

    async def broken(name: FullName) -> Any:
        if name.name == "t-1":
            raise ZeroDivisionError
        return await find(name)

    monkeypatch.setattr(broker.service.names, "find", broken)
    answer = await broker.produce(to(0, "a"), to(1, "a"))
    assert (answer.status_code, kinds(answer)) == (409, [None, "Unavailable"])
    assert (results(answer)[1]["code"], results(answer)[1]["outcome"]) == ("internal", "unknown")


async def test_a_drain_refuses_the_whole_and_says_to_come_back(broker: BrokerHarness) -> None:
    await broker.service.under_way.drain()
    answer = await broker.produce(to(0, "a"))
    assert problem(answer) == (503, "draining")
    assert answer.headers["retry-after"] == "1"


async def test_health_tells_which_process_answers(broker: BrokerHarness) -> None:
    first, again = [(await broker.client.get("/health")).json() for _ in range(2)]
    assert first == again
    assert first.keys() == {"status", "broker_id", "host", "port", "started_at_ms"}
    assert (first["status"], type(first["port"]), len(first["broker_id"])) == ("ok", int, 32)


def with_principal(app: ASGIApp, scopes: Sequence[str], audited: Audited | None = None) -> ASGIApp:
    async def known(scope: Scope, receive: Receive, send: Send) -> None:
        note_principal(scope, Principal(TENANT_DEFAULT, "key", tuple(scopes)))
        if audited is not None:
            note_audited(scope, audited)
        await app(scope, receive, send)

    return known


async def test_the_scope_is_asked_for_each_stream(broker: BrokerHarness) -> None:
    app = with_principal(broker.service.public, ["append:t-0", "read:t-1"])
    body = {"topic_partitions": [to(0, "a"), to(1, "a"), to(2, "a")]}
    async with client_of(app) as client:
        answer = await client.post("/produce", json=body)
    # Of what may not be seen nobody learns that it is there.
    assert kinds(answer) == [None, "Denied", "UnknownPartition"]
    assert [one.get("code") for one in results(answer)[1:]] == ["forbidden", "stream-not-found"]


@pytest.mark.parametrize(
    "policy",
    [
        Policy("tenant-requests", 2, 10**7, per_key=False, of_bytes=False),
        Policy("tenant-append-bytes", 1000, 10**7, per_key=False, of_bytes=True),
    ],
    ids=lambda policy: policy.name,
)
async def test_each_partition_is_counted_as_the_append_that_it_is(
    broker: BrokerHarness, policy: Policy
) -> None:
    limited = RateLimits([policy]).around(broker.service.public)
    async with client_of(with_principal(limited, ["*"])) as client:
        body = {"topic_partitions": [to(number, "x" * 400) for number in range(3)]}
        some = await client.post("/produce", json=body)
        none = await client.post("/produce", json=body)
    assert (some.status_code, kinds(some)) == (409, [None, None, "BackPressureRejected"])
    assert results(some)[2]["code"] == "rate-limited"
    assert (none.status_code, kinds(none)) == (503, ["BackPressureRejected"] * 3)
    assert int(none.headers["retry-after"]) > 0


@pytest.fixture
async def creating(tmp_path: Path) -> AsyncIterator[BrokerHarness]:
    made = BrokerHarness(tmp_path / "ingest", broker_create=True)
    made.manifest.__class__ = CreatingManifest
    made.manifest.made = []  # type: ignore[attr-defined]
    await made.start()
    yield made
    await made.aclose()


async def test_the_first_produce_makes_the_stream_once(creating: BrokerHarness) -> None:
    answers = await asyncio.gather(
        *(creating.produce(to(5, f"{n}", topic="new")) for n in range(10))
    )

    assert [answer.status_code for answer in answers] == [200] * 10
    assert creating.manifest.made == ["new-5"]  # type: ignore[attr-defined]
    assert sorted(results(answer)[0]["start_offset"] for answer in answers) == list(range(10))


async def test_a_stream_that_somebody_else_made_meanwhile_is_appended_to(
    creating: BrokerHarness,
) -> None:
    answer = await creating.produce(to(0, "a", topic="taken"))
    assert (answer.status_code, results(answer)[0]["start_offset"]) == (200, 0)


async def test_no_name_that_none_can_have_is_made(creating: BrokerHarness) -> None:
    answer = await creating.produce(to(0, "a", topic=".."), to(0, "a", topic="a*"))
    assert (answer.status_code, kinds(answer)) == (409, ["UnknownPartition"] * 2)
    assert creating.manifest.made == []  # type: ignore[attr-defined]


async def test_a_stream_is_made_by_who_may_create_one_and_the_audit_has_it(
    creating: BrokerHarness,
) -> None:
    body = {"topic_partitions": [to(0, "a", topic="n"), to(1, "a", topic="n")]}
    audited = Audited(None, None)
    app = with_principal(creating.service.public, ["append", "manage:n-1"], audited)
    async with client_of(app) as client:
        answer = await client.post("/produce", json=body)
    assert kinds(answer) == ["UnknownPartition", None]
    assert (audited.action, audited.target, audited.others) == ("stream.create", "n-1", [])


async def test_a_partition_of_another_node_is_appended_there(tmp_path: Path) -> None:
    served: list[ASGIApp] = []

    async def internal(scope: Scope, receive: Receive, send: Send) -> None:
        await served[0](scope, receive, send)

    async with on_tcp(internal) as port:
        owner = BrokerHarness(tmp_path / "owner", ingest_url=f"http://127.0.0.1:{port}")
        await owner.declare_all()
        served.append(Requests(access_log=False).around(wrap(owner.service.internal), trusted=True))
        await owner.start()
        assert (await owner.produce(to(0, "a"))).status_code == 200
        other = BrokerHarness(tmp_path / "other", before=owner, ingest_url="unix:///nobody.sock")
        await other.start()
        sender = {"id": "p", "epoch": 0, "seq": 0}
        answers = [
            await other.produce(to(0, "b", "c", producer=sender), to(1, "own")),
            await owner.produce(to(0, "b", "c", producer=sender)),
            await other.produce(to(0, "d", expected_offset=9)),
        ]
        counts = other.service.counts
        await other.aclose()
        await owner.aclose()

    assert [answer.status_code for answer in answers] == [200, 200, 409]
    # The repeat is known, whichever node it came by.
    assert [results(answer)[0].get("start_offset") for answer in answers] == [1, 1, None]
    assert results(answers[0])[0]["index_key"] == f"{IDS[0]}:1"
    assert (kinds(answers[2]), results(answers[2])[0]["high_watermark"]) == (["OffsetMismatch"], 3)
    assert (counts.forwarded, counts.appends) == (2, 1)
