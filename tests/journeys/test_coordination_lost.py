"""Coordination is lost under load, and rebuilt from the bucket: nothing is lost, no offset is used twice.

Done when of the repair: what was acknowledged and uploaded is there after the rebuild, and what
only the ingest node's disk held comes back with it, without a restart of anything.
"""

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from support.contract import problem_of
from support.lost_coordination import REGRESSED, await_loss, flush, rebuild
from support.separate_processes import four_processes
from support.server import AllInOne
from support.valkey import running_valkey
from support.waiting import until

SETTINGS = {
    "BOTTOMLESS_INGEST_LEASE_MS": "4000",
    "BOTTOMLESS_INGEST_LEASE_MARGIN_MS": "500",
    "BOTTOMLESS_INGEST_RENEW_MS": "300",
    "BOTTOMLESS_MANIFEST_GENERATION_CHECK_MS": "100",
    "BOTTOMLESS_MANIFEST_CONSUMER_SNAPSHOT_MS": "100",
    "BOTTOMLESS_MANIFEST_OPERATION_INTERVAL_MS": "100",
    "BOTTOMLESS_MANIFEST_DELETE_INTERVAL_MS": "200",
    "BOTTOMLESS_UPLOADER_RETRY_MAX_SECONDS": "1",
    "BOTTOMLESS_MANIFEST_REGISTER_WAIT_MS": "1000",
    "BOTTOMLESS_READER_ROOT_TTL_MS": "50",
}
FAST = {"fragment": {"target_bytes": 65_536, "max_age_ms": 100}}
SLOW = {"fragment": {"target_bytes": 2**26, "max_age_ms": 86_400_000}}


class Producers:
    """Append from several threads for as long as they may; remember what was acknowledged."""

    def __init__(self, url: str, streams: list[str], count: int) -> None:
        self.acknowledged: dict[tuple[str, int], str] = {}
        self.twice: list[tuple[str, int]] = []
        self.refusals: set[tuple[int, str]] = set()
        self._url = url
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._produce, args=(streams[n % len(streams)], n))
            for n in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def _produce(self, stream: str, number: int) -> None:
        with httpx.Client(base_url=self._url, timeout=30) as client:
            sent = 0
            while not self._ended.is_set():
                value = f"{number}:{sent}:" + "x" * 200
                sent += 1
                try:
                    answer = append(client, stream, value)
                except httpx.TransportError:
                    continue
                with self._lock:
                    self._note(stream, value, answer)

    def _note(self, stream: str, value: str, answer: httpx.Response) -> None:
        if answer.status_code != 200:
            self.refusals.add((answer.status_code, answer.json().get("code", "")))
            # Refused at once; whoever asks again at once only warms the room.
            self._ended.wait(0.02)
            return
        place = (stream, answer.json()["first_offset"])
        if place in self.acknowledged:
            self.twice.append(place)
        self.acknowledged[place] = value

    def end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()


def append(client: httpx.Client, stream: str, *values: str) -> httpx.Response:
    body = {"records": [{"value": value} for value in values]}
    return client.post(f"/v1/streams/{stream}/records", json=body)


def appended(client: httpx.Client, stream: str, *values: str) -> int:
    def answered() -> httpx.Response | None:
        answer = append(client, stream, *values)
        if answer.status_code == 503:
            return None
        return answer

    answer = until(answered, what="an append")
    assert answer.status_code == 200, answer.text
    return int(answer.json()["first_offset"])


def everything(client: httpx.Client, stream: str, offset: int | str = 0) -> dict[int, str]:
    records: dict[int, str] = {}
    while True:
        answer = client.get(
            f"/v1/streams/{stream}/records", params={"offset": offset, "limit": 1_000}
        )
        assert answer.status_code == 200, answer.text
        page = answer.json()
        if not page["records"]:
            return records
        records |= {record["offset"]: record["value"] for record in page["records"]}
        offset = page["next_offset"]


def readable(client: httpx.Client, stream: str) -> bool:
    return client.get(f"/v1/streams/{stream}/records", params={"offset": 0}).status_code == 200


def stored_next(client: httpx.Client, stream: str) -> int:
    answer = client.get(f"/v1/streams/{stream}/offsets")
    return int(answer.json()["object_store_next_offset"]) if answer.status_code == 200 else 0


@contextmanager
def a_server(directory: Path) -> Iterator[tuple[AllInOne, str]]:
    """The all-in-one with a coordination store that a test can get at."""
    with running_valkey(directory / "valkey") as valkey:
        settings = {**SETTINGS, "BOTTOMLESS_COORDINATION_URL": valkey.url}
        with AllInOne(directory / "data", settings) as server:
            yield server, valkey.url


def test_valkey_is_flushed_under_load_and_rebuilt_without_a_restart(tmp_path: Path) -> None:
    with four_processes(tmp_path, SETTINGS) as deployment, deployment.client() as client:
        for name in ("fast", "slow"):
            config = FAST if name == "fast" else SLOW
            client.put(f"/v1/streams/{name}", json=config).raise_for_status()
        producers = Producers(deployment.url, ["fast", "slow"], 4)
        try:
            until(lambda: stored_next(client, "fast") > 20, what="fragments")
            client.put("/v1/streams/young", json=SLOW).raise_for_status()
            first = appended(client, "young", "only on the disk")
            flush(deployment.coordination_url)
            await_loss(client)
            await_refusal(client)
            before = dict(producers.acknowledged)
            result = rebuild(client)
            until(
                lambda: (
                    sum(stream == "fast" for stream, _ in producers.acknowledged)
                    > sum(stream == "fast" for stream, _ in before) + 10
                ),
                what="appends after the rebuild",
            )
        finally:
            producers.end()

        assert result["streams"] == 3
        assert result["unreadable_streams"] == result["unknown"] == 0
        assert producers.twice == []
        assert {code for status, code in producers.refusals if status != 503} == set()
        # Nobody has written to it since: the node that has it claims it of itself.
        until(lambda: readable(client, "young"), what="the young stream's owner")
        assert everything(client, "young") == {first: "only on the disk"}
        for stream in ("fast", "slow"):
            mine = {
                offset: value
                for (name, offset), value in producers.acknowledged.items()
                if name == stream
            }
            found = everything(client, stream)
            assert {offset: found.get(offset) for offset in mine} == mine
            assert sorted(found) == list(range(len(found)))
        # What came back is uploaded as everything else.
        end = max(offset for name, offset in producers.acknowledged if name == "fast") + 1
        until(lambda: stored_next(client, "fast") >= end, what="the tail in object storage")


def await_refusal(client: httpx.Client) -> None:
    """The ingest node has noticed too: it refuses, and never says that there is no stream."""

    def refused() -> bool:
        answer = append(client, "fast", "refused")
        assert answer.status_code in (200, 503), answer.text
        return answer.status_code == 503 and answer.json()["code"] == REGRESSED

    until(refused, what="appends refused")
    for _ in range(5):
        problem_of(append(client, "fast", "refused"), 503, REGRESSED)
        problem_of(append(client, "no-such-stream", "refused"), 503, REGRESSED)


def test_after_a_restart_everything_that_was_promised_is_there(tmp_path: Path) -> None:
    """Scenarios C9 and D11, a deleted stream, and the tail of a node that was restarted too."""
    producer = "/v1/streams/slow/producers/p1"
    strict = {"Producer-Id": "p1", "Producer-Epoch": "0", "Producer-Seq": "0"}
    with a_server(tmp_path) as (server, valkey):
        with server.client() as client:
            for name in ("slow", "dead"):
                client.put(f"/v1/streams/{name}", json=SLOW).raise_for_status()
            first = appended(client, "slow", "a", "b")
            body = {"records": [{"value": "once"}]}
            sent = client.post("/v1/streams/slow/records", json=body, headers=strict)
            assert sent.status_code == 200, sent.text
            offset = "/v1/streams/slow/consumers/billing/offset"
            client.put(offset, json={"offset": first + 2}).raise_for_status()
            until(
                lambda: client.get(offset).json().get("durability") == "snapshot",
                what="the snapshot",
            )
            client.delete("/v1/streams/dead").raise_for_status()
        server.kill()
        flush(valkey)
        server.start()

        with server.client() as client:
            problem_of(client.get("/readyz"), 503, REGRESSED)
            for answer in (
                client.get("/v1/streams/slow"),
                client.put("/v1/streams/new", json=SLOW),
                append(client, "slow", "refused"),
                append(client, "no-such-stream", "refused"),
                client.get("/v1/streams/slow/records", params={"offset": 0}),
            ):
                problem_of(answer, 503, REGRESSED)
            assert client.get("/livez").status_code == 200
            result = rebuild(client)
            assert (result["streams"], result["deleted_streams"]) == (1, 1)
            problem_of(client.post("/v1/admin/rebuild"), 409, "coordination-intact")
            until(lambda: readable(client, "slow"), what="the owner")
            assert client.get("/readyz").status_code == 200

            again = client.post("/v1/streams/slow/records", json=body, headers=strict)
            assert again.status_code == 200, again.text
            assert again.json()["duplicates"] == 1
            assert again.json()["first_offset"] == sent.json()["first_offset"]
            assert everything(client, "slow") == {first: "a", first + 1: "b", first + 2: "once"}
            assert client.get(offset).json()["offset"] == first + 2
            problem_of(client.get("/v1/streams/dead"), 404, "stream-not-found")
            assert client.get(producer).status_code == 200
            assert appended(client, "slow", "next") == first + 3


def test_with_the_disk_lost_too_a_takeover_goes_on_behind_all_that_was_promised(
    tmp_path: Path,
) -> None:
    with a_server(tmp_path) as (server, valkey):
        with server.client() as client:
            client.put("/v1/streams/orders", json=FAST).raise_for_status()
            end = appended(client, "orders", "uploaded") + 1
            until(lambda: stored_next(client, "orders") == end, what="a fragment")
        server.kill()
        flush(valkey)
        shutil.rmtree(server.ingest_dir)
        server.start()

        with server.client() as client:
            rebuild(client)

            def disowned() -> bool:
                problem = append(client, "orders", "refused").json()
                assert problem["status"] == 503
                return str(problem["code"]) == "not-owner"

            until(disowned, what="the home alone may own it")
            takeover = "/v1/admin/streams/orders/takeover"
            body = {"accept_loss": True, "expect_home": "0" * 32}
            refused = problem_of(client.post(takeover, json=body), 409, "home-live")
            body["expect_home"] = refused["home"]
            client.post(takeover, json=body).raise_for_status()

            first = appended(client, "orders", "after")
            assert first == end + 2**32
            assert everything(client, "orders", first) == {first: "after"}
            page = client.get("/v1/streams/orders/records", params={"offset": 0}).json()
            assert page["records"][0]["value"] == "uploaded"
