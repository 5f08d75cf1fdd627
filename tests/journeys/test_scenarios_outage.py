"""Storage and workers that are away for a while: H15, M35, M37. And what requests cost: M53.

On an S3 server behind a proxy, which takes the store away from all processes at once, loses
what they did, and counts what they ask for.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import httpx
import pyarrow as pa
import pytest
from support.arrow import ipc
from support.contract import ARROW, QUICK, Stream, new_stream, problem_of
from support.fault_deployment import VALUE_SIZE, FaultDeployment, Load, fault_deployment
from support.fault_proxy import running_fault_proxy
from support.faults import FRAGMENT, Fault, Rule
from support.s3 import CREDENTIALS, S3Server
from support.separate_processes import four_processes
from support.server import AllInOne
from support.stored_stream import Found, StoredStream
from support.waiting import until

from bottomless.model.names import StreamId

DISK_MAX: Final = 1_000_000
AWAY: Final = Rule(Fault.LOSE_REQUEST)
"""Every connection to the store breaks."""
APPEND_SIZE: Final = VALUE_SIZE + 1_000
PARALLEL: Final = 8


@pytest.fixture(scope="module")
def deployment(
    tmp_path_factory: pytest.TempPathFactory, seaweed: S3Server
) -> Iterator[FaultDeployment]:
    settings = {"BOTTOMLESS_INGEST_DISK_BYTES_MAX": str(DISK_MAX)}
    with fault_deployment(tmp_path_factory.mktemp("run"), seaweed, settings) as running:
        yield running


@pytest.fixture
def load(deployment: FaultDeployment) -> Iterator[Load]:
    deployment.proxy.calm()
    with deployment.load() as made:
        for _ in range(12):
            made.append()
        until(made.is_stored, 240, "all in object storage")
        until(made.local_is_free, 240, "the local tier to be free")
        yield made
    deployment.proxy.calm()


def disk_use(deployment: FaultDeployment) -> int:
    return sum(path.stat().st_size for path in deployment.server.ingest_dir.rglob("*.segment"))


def offer(client: httpx.Client, load: Load, number: int) -> httpx.Response:
    """One more record; noted if it is acknowledged."""
    value = f"{load.name} offered {number}".ljust(VALUE_SIZE, "y")
    answer = Stream(client, load.name).post({"value": value})
    if answer.status_code == 200:
        load.acknowledged[answer.json()["first_offset"]] = value
    return answer


def test_while_the_store_is_away_producers_and_the_tail_go_on_and_the_rest_says_so(
    deployment: FaultDeployment, load: Load
) -> None:
    """H15."""
    with deployment.server.client() as client:
        stream = Stream(client, load.name)
        with deployment.proxy.disturbing(AWAY):
            load.append()
            last = max(load.acknowledged)
            tail = stream.page("tail:3")["records"]
            assert [(one["offset"], one["value"]) for one in tail] == [
                (offset, load.acknowledged[offset]) for offset in range(last - 2, last + 1)
            ]
            cold = stream.get(0, limit=1)
            problem = problem_of(cold, 503, "object-store-unavailable")
            assert (problem["outcome"], problem["retryable"]) == ("none", True)
            assert int(cold.headers["retry-after"]) >= 1
            listed = client.get("/v1/streams").json()["items"]
            assert load.name in [one["name"] for one in listed]
            assert client.get(stream.path).status_code == 200
            assert client.get("/livez").status_code == 200
            created = client.put(f"/v1/streams/{load.name}-new")
            problem = problem_of(created, 503, "object-store-unavailable")
            assert problem["retryable"]
            assert int(created.headers["retry-after"]) >= 1
            missing = client.get(f"/v1/streams/{load.name}-new").status_code == 404
            assert missing or problem["outcome"] != "none"
        assert stream.get(0, limit=1).status_code == 200
        again = client.put(f"/v1/streams/{load.name}-new")
        assert again.status_code in ({201} if missing else {200, 201}), again.text
    load.check("a store that was away")


def test_a_store_that_stays_away_is_answered_before_the_disk_is_full(
    deployment: FaultDeployment, load: Load
) -> None:
    """M35: acknowledged up to the bound, then 429; with the store back everything reaches it."""
    with deployment.server.client() as client, ThreadPoolExecutor(PARALLEL) as threads:
        number = iter(range(10**6))

        def attempt(_: int = 0) -> httpx.Response:
            return offer(client, load, next(number))

        with deployment.proxy.disturbing(AWAY):
            refused = until(
                lambda: next(
                    (one for one in threads.map(attempt, range(PARALLEL)) if one.is_error), None
                ),
                what="the bound",
            )
            problem = problem_of(refused, 429, "disk-bound")
            assert (problem["outcome"], problem["retryable"]) == ("none", True)
            assert problem["limit_bytes"] == DISK_MAX
            assert int(refused.headers["retry-after"]) >= 1
            full = disk_use(deployment)
            assert DISK_MAX * 0.9 < full < DISK_MAX + PARALLEL * APPEND_SIZE
            acknowledged = len(load.acknowledged)
            for answer in threads.map(attempt, range(50)):
                problem_of(answer, 429, "disk-bound")
            assert (disk_use(deployment), len(load.acknowledged)) == (full, acknowledged)
            last = Stream(client, load.name).page("tail:1")["records"][0]
            assert (last["offset"], last["value"]) == (
                max(load.acknowledged),
                load.acknowledged[max(load.acknowledged)],
            )
            assert client.get("/livez").status_code == 200
        until(lambda: attempt().status_code == 200, what="appends to go on")
    load.check("a store that stayed away")
    assert disk_use(deployment) < DISK_MAX / 2


def test_an_upload_worker_that_is_killed_leaves_one_entry_for_each_upload(
    tmp_path: Path, seaweed: S3Server
) -> None:
    """M37: one upload is done and its answer lost; one arrives when its sender is dead."""
    settings = {
        "BOTTOMLESS_MANIFEST_UPLOAD_DEADLINE_MS": "3000",
        "BOTTOMLESS_UPLOADER_UPLOAD_DEADLINE_SECONDS": "2",
        "BOTTOMLESS_MANIFEST_DELETE_INTERVAL_MS": "100",
    }
    with (
        running_fault_proxy(seaweed.endpoint) as proxy,
        four_processes(tmp_path, settings, S3Server(proxy.endpoint)) as deployment,
        deployment.client() as client,
    ):
        streams = {fault: new_stream(client, QUICK) for fault in (Fault.STALL, Fault.LATE_REQUEST)}
        ids = {
            fault: str(client.get(one.path).json()["stream_id"]) for fault, one in streams.items()
        }
        rules = [Rule(fault, "PUT", f"{ids[fault]}/.*{FRAGMENT}", times=1) for fault in streams]
        with proxy.disturbing(*rules):
            for one in streams.values():
                one.append("first", "second")
            until(lambda: proxy.exhausted(*rules), what="both uploads under way")
            deployment.kill("uploader")
            for one in streams.values():
                one.append("third")
            deployment.start()
            for one in streams.values():
                one.wait_uploaded()
        for fault, one in streams.items():
            stream_id = StreamId(ids[fault])
            found = settled(deployment.stored_stream(stream_id))
            assert found.values == ["first", "second", "third"]
            listed = client.get(f"{one.path}/fragments").json()["fragments"]
            assert [item["id"] for item in listed] == [item.fragment_id for item in found.fragments]
            assert len(found.fragments) <= 2


def settled(stored: StoredStream) -> Found:
    """What is there once nothing is left that nobody knows of."""

    def look() -> Found | None:
        found = stored.look()
        return None if found.strangers else found

    return until(look, what="nothing left over")


MIB: Final = 1024 * 1024
FRAGMENT_MIB: Final = 64
"""The default size of a fragment."""
WRITE_MAX: Final = 48
"""Requests for a GiB that is written, as docs/guarantees.md says."""
READ_MAX: Final = 320
"""Requests for a GiB that is read once, from cold caches, as docs/guarantees.md says."""


FIRST_ROOT: Final = 1
"""A stream's first root, which has nothing in it and is put once."""


def per_gib(asked: list[tuple[str, str]], stored: int, *, once: int = 0) -> float:
    """What was asked of the objects that grow with the stream."""
    grows = [path for _, path in asked if "/data/" in path or "/metadata/" in path]
    assert len(grows) > 1 + once
    return (len(grows) - once) * 1024 / stored


def test_what_is_asked_of_the_store_for_a_gib_is_within_its_budget(
    tmp_path: Path, seaweed: S3Server
) -> None:
    """M53: with the settings that nobody changed, but that local copies go at once."""
    with running_fault_proxy(seaweed.endpoint) as proxy:
        settings = {
            **CREDENTIALS,
            "BOTTOMLESS_STORE_URL": S3Server(proxy.endpoint).store_url(f"cost-{tmp_path.name}"),
            "BOTTOMLESS_INGEST_LOCAL_KEEP_MS": "0",
            "BOTTOMLESS_INGEST_SEGMENT_SIZE_MAX": str(16 * MIB),
        }
        with AllInOne(tmp_path / "data", settings) as server, server.client() as client:
            stream = new_stream(client)
            values = pa.array([number.to_bytes(4, "big") * (MIB // 4) for number in range(8)])
            body = ipc(pa.table({"value": values}))
            for _ in range(FRAGMENT_MIB // 8 + 1):
                sent = client.post(stream.records, content=body, headers={"content-type": ARROW})
                sent.raise_for_status()
            until(lambda: stream.bounds()["object_store_next_offset"], what="a fragment")
            stored = int(stream.bounds()["object_store_next_offset"])
            assert stored >= FRAGMENT_MIB - 8, "the first fragment is a whole one"
            put = [one for one in proxy.asked if one[0] != "GET"]
        with AllInOne(tmp_path / "data", settings) as server, server.client() as client:
            offset, begin = 0, len(proxy.asked)
            asked = {"limit": stored, "max_bytes": 16 * MIB}
            while offset < stored:
                page = client.get(
                    stream.records, params={**asked, "offset": offset}, headers={"accept": ARROW}
                )
                offset = int(page.headers["page-next-offset"])
            got = proxy.asked[begin:]
    assert per_gib(put, stored, once=FIRST_ROOT) <= WRITE_MAX, put
    assert per_gib(got, stored) <= READ_MAX, got
