"""The manifest over HTTP: public and internal paths, without a socket."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest
from support.asgi import client_of
from support.manifest import OWNER, ManifestHarness, a_fragment
from support.object_keys import registry_key

from bottomless.formats.stream_record import LEADERLESS, decode_registry
from bottomless.model.fragment import FragmentInfo
from bottomless.model.names import StreamId, Uid
from bottomless.model.stream import EpochStart, StreamRecord
from bottomless_server.ingest.settings import IngestSettings
from bottomless_server.manifest.app import ManifestService
from bottomless_server.manifest.front.discovery_routes import describe_limits
from bottomless_server.manifest.settings import ManifestSettings
from bottomless_server.protocol.uploads import encode_fragment
from bottomless_server.queues.operator_settings import QueuesSettings
from bottomless_server.runtime.http.app import wrap


class Service:
    def __init__(self, harness: ManifestHarness, service: ManifestService) -> None:
        self.harness = harness
        self.public = client_of(wrap(service.public))
        self.internal = client_of(wrap(service.internal))

    async def post(self, stream_id: str, what: str, body: Any) -> httpx.Response:
        return await self.internal.post(f"/internal/v1/streams/{stream_id}/{what}", json=body)

    async def owned(self, name: str = "orders", session: str = "s1") -> StreamId:
        """A stream that an ingest node has claimed, with a session begun."""
        answer = await self.public.put(f"/v1/streams/{name}")
        stream_id = StreamId(answer.json()["stream_id"])
        await self.harness.streams.update(stream_id, claim)
        assert (await self.post(stream_id, "uploads", {"session": session})).status_code == 200
        return stream_id

    async def register(self, stream_id: str, *ranges: tuple[int, int]) -> httpx.Response:
        body = {"session": "s1", "first_offsets": [first for first, _ in ranges]}
        uids = (await self.post(stream_id, "intents", body)).json()["uids"]
        fragments = [
            a_fragment(first, next_, uid=Uid(uid))
            for uid, (first, next_) in zip(uids, ranges, strict=True)
        ]
        return await self.register_all(stream_id, fragments)

    async def register_all(self, stream_id: str, fragments: list[FragmentInfo]) -> httpx.Response:
        body = {"session": "s1", "fragments": [encode_fragment(fragment) for fragment in fragments]}
        return await self.post(stream_id, "fragments", body)


def claim(record: StreamRecord) -> StreamRecord:
    return replace(
        record,
        epoch=1,
        epochs=(EpochStart(1, 0),),
        owner_url=OWNER,
        dirty=True,
        reserved_next=1_000_000,
    )


def _loop_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)


@asynccontextmanager
async def running(harness: ManifestHarness) -> AsyncIterator[Service]:
    table = harness.context.drives
    context = replace(harness.context, clock=_loop_ms, elapsed=_loop_ms, table=table)
    service = ManifestService(context)
    await service.start()
    yield Service(harness, service)
    await service.drain()
    await service.stop()


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    async with running(ManifestHarness()) as started:
        yield started


async def test_s1_a_new_stream_with_defaults(service: Service) -> None:
    answer = await service.public.put("/v1/streams/orders")

    body = answer.json()
    assert answer.status_code == 201
    assert answer.headers["location"] == "/v1/streams/orders"
    assert answer.headers["etag"] == f'"{body["stream_id"]}.c1"'
    assert answer.headers["stream-id"] == body["stream_id"]
    assert body["offsets"] == {"first": 0, "committed": None, "next": 0}
    assert body["fragment"] == {"target_bytes": 67_108_864, "max_age_ms": 60_000}
    assert body["retention"] == {
        "max_age": None,
        "max_age_seconds": None,
        "max_bytes": None,
        "source": "default",
    }
    assert (body["state"], body["size_bytes"], body["fragment_count"]) == ("active", 0, 0)


async def test_s2_the_same_put_again_finds_the_same_stream(service: Service) -> None:
    config = {"retention": {"max_age": "7D"}, "labels": {"team": "billing"}}
    first = await service.public.put("/v1/streams/orders", json=config)
    second = await service.public.put("/v1/streams/orders", json=config)

    assert (first.status_code, second.status_code) == (201, 200)
    assert first.headers["etag"] == second.headers["etag"]
    assert first.json() == second.json()
    assert first.json()["retention"]["max_age_seconds"] == 604_800
    assert first.json()["retention"]["source"] == "stream"
    assert "location" not in second.headers


async def test_s3_another_configuration_is_a_conflict_with_its_differences(
    service: Service,
) -> None:
    await service.public.put("/v1/streams/orders")

    answer = await service.public.put("/v1/streams/orders", json={"retention": {"max_bytes": 9}})

    assert answer.status_code == 409
    problem = answer.json()
    assert (problem["code"], problem["outcome"]) == ("stream-exists", "none")
    assert problem["differences"] == ["/retention/max_bytes"]


async def test_s4_of_fifty_parallel_puts_exactly_one_creates(service: Service) -> None:
    answers = await asyncio.gather(
        *(service.public.put("/v1/streams/orders", json={}) for _ in range(50))
    )

    statuses = sorted(answer.status_code for answer in answers)
    assert statuses == [200] * 49 + [201]
    assert len({answer.json()["stream_id"] for answer in answers}) == 1
    assert len({answer.headers["etag"] for answer in answers}) == 1


@pytest.mark.parametrize(
    "config",
    [
        {"fragment": {"unknown": 1}},
        {"fragment": {"target_bytes": 0}},
        {"fragment": {"max_age_ms": -1}},
        {"retention": {"max_age": "0D"}},
        {"retention": {"max_age": "5 fortnights"}},
        {"retention": {"max_bytes": "9"}},
        {"ttl": 1},
        {"priority": 1},
        {"stream_id": "x"},
        {"tenant": "x"},
        {"labels": {"a": 10**30}},
        [],
    ],
)
async def test_s8_s15_what_the_schema_does_not_know_is_refused(
    service: Service, config: Any
) -> None:
    answer = await service.public.put("/v1/streams/orders", json=config)

    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert (await service.public.get("/v1/streams/orders")).status_code == 404


@pytest.mark.parametrize(
    ("name", "status"),
    [("..", 404), ("a b", 400), ("amq.x", 400), ("-x", 400), ("a" * 129, 400), ("a%2fb", 400)],
)
async def test_a_bad_name_creates_nothing(service: Service, name: str, status: int) -> None:
    answer = await service.public.put(f"/v1/streams/{name}")

    assert answer.status_code == status
    keys = [facts.object_key async for facts in service.harness.drive.list()]
    assert keys == ["_system/generation.json"]


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({"content-type": "text/plain"}, b"{}", 415),
        ({}, b"{}", 415),
        ({"content-type": "application/json", "content-encoding": "gzip"}, b"{}", 415),
        ({"content-type": "application/json"}, b"{", 400),
        ({"content-type": "application/json"}, b'{"labels":{},"labels":{}}', 400),
        ({"content-type": "application/json"}, b" " * 300_000, 413),
        ({"accept": "application/xml"}, b"", 406),
    ],
)
async def test_a_body_that_cannot_be_read_is_refused(
    service: Service, headers: dict[str, str], body: bytes, status: int
) -> None:
    answer = await service.public.put("/v1/streams/orders", content=body, headers=headers)

    assert answer.status_code == status


async def test_other_methods_and_parameters_are_refused(service: Service) -> None:
    assert (await service.public.post("/v1/streams/orders")).status_code == 405
    assert (await service.public.put("/v1/streams/orders?x=1")).status_code == 400
    assert (await service.public.put("/v1/streams/orders/")).status_code == 404


async def test_s14_head_has_the_headers_of_get_and_no_body(service: Service) -> None:
    await service.public.put("/v1/streams/orders")

    get, head = [
        await service.public.request(method, "/v1/streams/orders") for method in ("GET", "HEAD")
    ]

    own = {"request-id"}
    assert {k: v for k, v in get.headers.items() if k not in own} == {
        k: v for k, v in head.headers.items() if k not in own
    }
    assert head.content == b""
    assert (await service.public.head("/v1/streams/none")).status_code == 404


async def test_an_unchanged_description_is_not_sent_again(service: Service) -> None:
    etag = (await service.public.put("/v1/streams/orders")).headers["etag"]

    for condition in (etag, f"W/{etag}", f'"x", {etag}', "*"):
        answer = await service.public.get(
            "/v1/streams/orders", headers={"if-none-match": condition}
        )
        assert (answer.status_code, answer.content) == (304, b"")
        assert answer.headers["etag"] == etag


async def test_the_registry_object_is_put_and_a_crash_before_it_is_mended(
    service: Service,
) -> None:
    harness = service.harness
    harness.drive.failing = True
    answer = await service.public.put("/v1/streams/orders")
    assert (answer.status_code, answer.json()["outcome"]) == (503, "committed")

    harness.drive.failing = False
    answer = await service.public.get("/v1/streams/orders")

    stream_id = answer.json()["stream_id"]
    assert answer.status_code == 200
    assert decode_registry(await harness.drive.get(registry_key(stream_id, 1))).name == "orders"
    assert (await service.public.put("/v1/streams/orders")).status_code == 200


async def test_offsets_are_the_owners_or_unknown(service: Service) -> None:
    stream_id = await service.owned()
    unknown = await service.public.get("/v1/streams/orders")
    assert unknown.json()["offsets"] == {"first": 0, "committed": None, "next": None}
    assert "stream-next-offset" not in unknown.headers

    service.harness.owners.committed[stream_id] = 43
    known = await service.public.get("/v1/streams/orders")

    assert known.json()["offsets"] == {"first": 0, "committed": 42, "next": 43}
    assert known.headers["stream-next-offset"] == "43"


async def test_a_registered_fragment_is_applied_and_the_owner_hears_of_it(
    service: Service,
) -> None:
    stream_id = await service.owned()

    answer = await service.register(stream_id, (0, 10), (20, 30), (10, 20))

    body = answer.json()
    assert (answer.status_code, body["published_next"], body["waiting"]) == (200, 30, [])
    assert len(body["applied"]) == 3
    described = (await service.public.get("/v1/streams/orders")).json()
    assert described["fragment_count"] == 3
    assert described["size_bytes"] == 3_030
    async with asyncio.timeout(240):
        while (30, body["version"]) not in service.harness.owners.heard:
            await asyncio.sleep(0.01)


async def test_a_fragment_after_a_hole_is_said_to_wait(service: Service) -> None:
    quick = ManifestHarness(manifest_register_wait_ms=50)
    async with running(quick) as started:
        stream_id = await started.owned()
        body = (await started.register(stream_id, (10, 20))).json()

    assert (body["published_next"], body["applied"], len(body["waiting"])) == (0, [], 1)


async def test_registering_twice_at_once_is_applied_once(service: Service) -> None:
    stream_id = await service.owned()
    body = {"session": "s1", "first_offsets": [0]}
    (uid,) = (await service.post(stream_id, "intents", body)).json()["uids"]
    fragment = a_fragment(0, 10, uid=uid)

    answers = await asyncio.gather(
        *(service.register_all(stream_id, [fragment]) for _ in range(10))
    )

    assert {answer.status_code for answer in answers} == {200}
    assert all(answer.json()["applied"] == [uid] for answer in answers)
    described = (await service.public.get("/v1/streams/orders")).json()
    assert described["fragment_count"] == 1


async def test_an_old_session_is_fenced(service: Service) -> None:
    stream_id = await service.owned(session="s1")
    await service.post(stream_id, "uploads", {"session": "s2"})

    answers = [
        await service.register_all(stream_id, [a_fragment(0, 10)]),
        await service.post(stream_id, "intents", {"session": "s1", "first_offsets": [0]}),
        await service.post(stream_id, "abandon", {"session": "s1", "uids": []}),
    ]

    assert [(a.status_code, a.json()["code"]) for a in answers] == [(409, "fenced")] * 3


async def test_a_fragment_of_an_old_epoch_is_fenced(service: Service) -> None:
    stream_id = await service.owned()
    await service.harness.streams.update(
        stream_id, lambda r: replace(r, epoch=2, epochs=(EpochStart(1, 0), EpochStart(2, 5)))
    )

    answer = await service.register(stream_id, (0, 10))

    assert (answer.status_code, answer.json()["code"]) == (409, "fenced")
    assert (answer.json()["published_next"], answer.json()["epoch"]) == (0, 2)


@pytest.mark.parametrize(
    ("what", "body"),
    [
        ("uploads", {}),
        ("uploads", {"session": ""}),
        ("intents", {"session": "s1", "first_offsets": []}),
        ("intents", {"session": "s1", "first_offsets": [-1]}),
        ("intents", {"session": "s1", "first_offsets": ["0"]}),
        ("fragments", {"session": "s1", "fragments": [{}]}),
        ("fragments", {"session": "s1", "fragments": [encode_fragment(a_fragment(10, 10))]}),
        ("abandon", {"session": "s1", "uids": ["x"]}),
    ],
)
async def test_a_wrong_internal_body_is_refused(service: Service, what: str, body: Any) -> None:
    stream_id = await service.owned()

    assert (await service.post(stream_id, what, body)).status_code == 422


async def test_others_find_a_stream_by_name_and_by_id(service: Service) -> None:
    stream_id = await service.owned()
    base = "/internal/v1/streams"

    by_name = (await service.internal.get(f"{base}/by-name/orders")).json()

    assert by_name == (await service.internal.get(f"{base}/{stream_id}")).json()
    assert by_name["stream_id"] == stream_id
    assert (by_name["epoch"], by_name["owner_url"], by_name["published_next"]) == (1, OWNER, 0)
    assert (await service.internal.get(f"{base}/by-name/none")).status_code == 404
    assert (await service.internal.get(f"{base}/{'0' * 36}")).status_code == 400


async def test_many_names_are_found_in_one_question(service: Service) -> None:
    stream_id = await service.owned()
    path = "/internal/v1/names"

    def named(tenant: str, name: str) -> dict[str, str]:
        return {"tenant": tenant, "name": name}

    names = [named("default", "orders"), named("default", "none"), named("acme", "orders")]
    found = await service.internal.post(path, json={"names": names})

    assert found.json() == {"streams": [{**names[0], "stream_id": stream_id}]}
    too_many = [named("default", f"orders-{number}") for number in range(1_001)]
    for refused in ([], too_many, [named("default", "no/name")], [{"name": "orders"}]):
        answer = await service.internal.post(path, json={"names": refused})
        assert answer.status_code in (400, 422), answer.text
    await service.public.delete("/v1/streams/orders")
    assert (await service.internal.post(path, json={"names": names})).json() == {"streams": []}


async def test_the_root_is_named_and_waited_for(service: Service) -> None:
    stream_id = await service.owned()
    path = f"/internal/v1/streams/{stream_id}/root"
    empty = await service.internal.get(path)
    assert (empty.json()["root"], empty.json()["version"]) == (None, 0)
    known = {"if-none-match": empty.headers["etag"]}
    assert (await service.internal.get(path, headers=known)).status_code == 304

    waiting = asyncio.create_task(
        service.internal.get(path, headers=known, params={"wait_ms": 30_000})
    )
    await service.register(stream_id, (0, 10))
    async with asyncio.timeout(240):
        answer = await waiting

    assert answer.status_code == 200
    # The first change is the first root, which is there before any fragment.
    assert (answer.json()["published_next"], answer.json()["version"]) == (0, 1)
    body = (await service.internal.get(path)).json()
    assert (body["published_next"], body["first_offset"], body["version"]) == (10, 0, 2)
    assert body["root"].keys() == {"uid", "generation", "epoch", "version", "size", "crc"}
    assert (await service.internal.get(path + "?wait_ms=30001")).status_code == 400


async def test_a_missing_root_is_said_and_not_hidden(service: Service) -> None:
    stream_id = await service.owned()
    await service.register(stream_id, (0, 10))
    keys = [facts.object_key async for facts in service.harness.drive.list()]
    await service.harness.drive.delete([key for key in keys if key.endswith(".manifest")])

    async with running(service.harness) as restarted:
        answers = [
            await restarted.public.get("/v1/streams/orders"),
            await restarted.internal.get(f"/internal/v1/streams/{stream_id}/root"),
        ]

    assert [(a.status_code, a.json()["code"]) for a in answers] == [(502, "data-missing")] * 2


async def test_a_restart_goes_on_where_the_record_is(service: Service) -> None:
    stream_id = await service.owned()
    await service.register(stream_id, (0, 10))

    async with running(service.harness) as restarted:
        body = (await restarted.register(stream_id, (10, 20))).json()

    assert body["published_next"] == 20


async def test_a_drain_publishes_what_waits_for_its_time() -> None:
    harness = ManifestHarness(manifest_debounce_ms=60_000, manifest_register_wait_ms=1)
    async with running(harness) as started:
        stream_id = await started.owned()
        assert (await started.register(stream_id, (0, 10))).json()["applied"] == []

    assert (await harness.streams.load(stream_id)).published_next == 10


async def test_streams_beyond_the_bound_take_turns() -> None:
    async with running(ManifestHarness(manifest_stream_count_max=2)) as started:
        names = [f"s{n}" for n in range(6)]
        for _ in range(2):
            statuses = [(await started.public.put(f"/v1/streams/{n}")).status_code for n in names]

    assert statuses == [200] * 6


def test_limits_say_what_ingest_holds_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOTTOMLESS_INGEST_PRODUCER_COUNT_MAX", "3")

    told = describe_limits(ManifestSettings())["stream"]["producers"]

    assert told == IngestSettings().ingest_producer_count_max == 3


def test_limits_say_what_the_broker_takes() -> None:
    told = describe_limits(ManifestSettings())["broker"]

    assert told == {"partitions": 256, "records": 10_000, "bytes": 16 << 20}


def test_limits_say_what_queues_hold_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOTTOMLESS_QUEUES_MESSAGE_BYTES_MAX", "2048")

    told = describe_limits(ManifestSettings())

    assert told["queues"]["value_bytes"] == QueuesSettings().queues_message_bytes_max == 2048
    assert told["queues"]["publish_messages"] == 1_000
    assert told["tenant"]["queues"] == 10_000


async def test_ten_who_make_one_stream_at_once_make_one() -> None:
    """L40: what the first produce to a partition asks for, from ten nodes."""
    harness = ManifestHarness(frozenset({LEADERLESS}))
    path = "/internal/v1/streams/by-name/new-0?tenant=default"
    wanted = {"profile": "leaderless"}
    async with running(harness) as service:
        answers = await asyncio.gather(
            *(service.internal.put(path, json=wanted) for _ in range(10))
        )
        assert [answer.status_code for answer in answers] == [200] * 10
        assert [answer.json() for answer in answers].count({"created": True}) == 1
        shown = (await service.public.get("/v1/streams/new-0")).json()
        listed = (await service.public.get("/v1/streams")).json()["items"]
        other = await service.internal.put(path, json={"profile": "local"})
    assert shown["profile"] == "leaderless"
    assert [one["stream_id"] for one in listed] == [shown["stream_id"]]
    assert (other.status_code, other.json()["code"]) == (409, "stream-exists")
