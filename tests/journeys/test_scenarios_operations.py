"""What an operator relies on: slow clients are let go, nothing inside shows outside, metrics say
what happens, one request can be followed through all services: scenarios H9, H14, H25."""

import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.grafana import dashboards, expressions
from support.ports import lasting_ports
from support.prometheus import metrics_of, rules
from support.server import AllInOne
from support.waiting import until

ROOT = Path(__file__).parents[2]
ORIGIN = "https://pages.example"
SLOW_COUNT = 40
INTERNAL = "/internal/v1/commits"


class Observed(AllInOne):
    """The all-in-one with everything on that is off, and little patience."""

    def __init__(self, directory: Path) -> None:
        (self.metrics_port,) = lasting_ports(1)
        settings = {
            "BOTTOMLESS_HTTP_HEAD_SECONDS": "2",
            "BOTTOMLESS_HTTP_BODY_SECONDS": "4",
            "BOTTOMLESS_HTTP_BODY_STALL_SECONDS": "2",
            "BOTTOMLESS_CORS_ORIGINS": f"{ORIGIN}, http://127.0.0.1:3000",
            "BOTTOMLESS_DOCS": "1",
            "BOTTOMLESS_LOG_REQUESTS": "1",
            "BOTTOMLESS_LOG_JSON": "1",
            "BOTTOMLESS_METRICS_LISTEN": f"127.0.0.1:{self.metrics_port}",
            "BOTTOMLESS_MANIFEST_DEBOUNCE_MS": "1",
        }
        super().__init__(directory / "data", settings)

    def metrics(self) -> dict[str, Any]:
        """All families by name; a counter's name without `_total`."""
        answer = httpx.get(f"http://127.0.0.1:{self.metrics_port}/metrics").raise_for_status()
        return {family.name: family for family in text_string_to_metric_families(answer.text)}

    def value(self, sample_name: str, **labels: str) -> float:
        """The sum of the samples that have these labels."""
        samples = (sample for family in self.metrics().values() for sample in family.samples)
        found = [
            float(sample.value)
            for sample in samples
            if sample.name == sample_name and labels.items() <= sample.labels.items()
        ]
        return sum(found)

    def lines(self, **members: Any) -> list[dict[str, Any]]:
        """Lines of the log that have these members."""
        lines = [json.loads(line) for line in self.log().splitlines()]
        return [line for line in lines if members.items() <= line.items()]


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    with Observed(tmp_path_factory.mktemp("observed")) as server:
        yield server


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AllInOne]:
    with AllInOne(tmp_path_factory.mktemp("plain") / "data") as server:
        yield server


def append(client: httpx.Client, stream: str, value: str) -> httpx.Response:
    return client.post(f"/v1/streams/{stream}/records", json={"records": [{"value": value}]})


def connect(server: AllInOne) -> socket.socket:
    where = urlsplit(server.url)
    return socket.create_connection((where.hostname, where.port), timeout=30)


def test_slow_heads_and_bodies_are_let_go_while_others_are_served(observed: Observed) -> None:
    """H9."""
    head = b"GET /v1/streams HTTP/1.1\r\nHost: x\r\nX-A: "
    body = (
        b"POST /v1/streams/h9/records HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: 1000000\r\n\r\n{"
    )
    with observed.client() as client:
        client.put("/v1/streams/h9").raise_for_status()
        slow = [connect(observed) for _ in range(SLOW_COUNT)]
        for number, connection in enumerate(slow):
            connection.sendall(head if number % 2 else body)
        left, answers, served = set(slow), dict[socket.socket, bytes](), 0
        deadline = time.monotonic() + 240
        while left:
            assert time.monotonic() < deadline, f"{len(left)} slow clients are still there"
            # The others go on, and the slow ones send a byte each.
            append(client, "h9", "fast").raise_for_status()
            served += 1
            for connection in list(left):
                connection.setblocking(False)
                try:
                    answers[connection] = answers.get(connection, b"") + connection.recv(65536)
                    left.discard(connection)
                except BlockingIOError:
                    connection.send(b"a")
        stored = client.get("/v1/streams/h9/offsets").json()["next_offset"]
        last = {"offset": "tail:1000", "limit": "1000"}
        records = client.get("/v1/streams/h9/records", params=last).json()["records"]

    assert stored == served > 0
    assert {record["value"] for record in records} == {"fast"}
    for connection, answer in answers.items():
        assert answer.startswith(b"HTTP/1.1 408 "), answer
        assert b'"code":"request-timeout"' in answer
        connection.close()


def test_pages_of_other_origins_get_nothing_that_is_not_listed(
    observed: Observed, plain: AllInOne
) -> None:
    """H14."""

    def asked(server: AllInOne, origin: str) -> list[httpx.Headers]:
        preflight = {"origin": origin, "access-control-request-method": "POST"}
        with server.client() as client:
            return [
                client.options("/v1/streams/a/records", headers=preflight).headers,
                client.get("/v1/streams", headers={"origin": origin}).headers,
            ]

    refused = [
        *asked(plain, ORIGIN),
        *asked(observed, "https://other.example"),
        *asked(observed, f"{ORIGIN}.other.example"),
        *asked(observed, "null"),
    ]
    for headers in refused:
        assert [name for name in headers if name.startswith("access-control-allow")] == []
    preflight, simple = asked(observed, ORIGIN)
    assert preflight["access-control-allow-origin"] == ORIGIN
    assert "POST" in preflight["access-control-allow-methods"]
    assert simple["access-control-allow-origin"] == ORIGIN
    assert "access-control-allow-credentials" not in preflight
    assert "origin" in simple["vary"].lower()


@pytest.mark.parametrize("path", ["/metrics", "/metrics/prometheus", "/docs/nothing", INTERNAL])
def test_what_is_inside_is_not_served_outside(plain: AllInOne, path: str) -> None:
    """H25."""
    with plain.client() as client:
        answer = client.get(path)
    assert answer.status_code == 404
    assert answer.json()["code"] == "not-found"


def test_metrics_and_internal_paths_stay_inside_also_where_docs_are_on(observed: Observed) -> None:
    """H25."""
    with observed.client() as client:
        assert client.get("/metrics").status_code == 404
        assert client.get(INTERNAL).status_code == 404
    # Beside metrics the listener for them serves health alone.
    inside = f"http://127.0.0.1:{observed.metrics_port}"
    assert httpx.get(f"{inside}{INTERNAL}").status_code == 404
    assert httpx.get(f"{inside}/livez").status_code == 200
    assert httpx.post(f"{inside}/metrics").status_code == 405


def test_every_internal_listener_serves_metrics(observed: Observed) -> None:
    for name in ("manifest", "ingest", "uploader", "reader"):
        with observed.internal(name) as client:
            assert "bottomless_ingest_appends_total" in client.get("/metrics").text


def test_the_page_of_metrics_lists_what_is_served(observed: Observed) -> None:
    served = {
        f"{name}_total" if family.type == "counter" else name: family.type
        for name, family in observed.metrics().items()
        if name.startswith("bottomless_")
    }
    page = (ROOT / "docs/metrics.md").read_text()
    row = re.compile(r"^\| `(bottomless_\w+)` \| (\w+) \|([^|]*)\| ([^|]+) \|$", re.MULTILINE)
    rows = row.findall(page)

    assert {name: kind for name, kind, _, _ in rows} == served
    labels = {name: set(filter(None, words.strip().split(", "))) for name, _, words, _ in rows}
    for name, family in observed.metrics().items():
        shown = {label for sample in family.samples for label in sample.labels} - {"le"}
        if name.startswith("bottomless_") and family.samples:
            full = f"{name}_total" if family.type == "counter" else name
            assert shown == labels[full], name


def test_metrics_count_what_happens_and_name_nobody(observed: Observed) -> None:
    def fragments() -> float:
        return observed.value("bottomless_uploader_fragments_total")

    before = {
        name: observed.value(f"bottomless_ingest_{name}_total")
        for name in ("appends", "records", "append_bytes", "duplicates")
    }
    uploaded = fragments()
    route = {"route": "/v1/streams/{s}/records", "method": "POST", "status": "200"}
    requests = observed.value("bottomless_http_requests_total", **route)
    with observed.client() as client:
        short = {"fragment": {"target_bytes": 65_536, "max_age_ms": 100}}
        client.put("/v1/streams/counted-stream", json=short).raise_for_status()
        keyed = {"idempotency-key": "once"}
        for _ in range(2):
            client.post(
                "/v1/streams/counted-stream/records",
                json={"records": [{"value": "a"}, {"value": "b"}]},
                headers=keyed,
            ).raise_for_status()
        client.get("/v1/streams/nobody-s-stream/records", params={"offset": "first"})
        client.get("/nobody-serves/this")
        until(lambda: fragments() > uploaded, what="a fragment counted")

    after = {name: observed.value(f"bottomless_ingest_{name}_total") for name in before}
    assert {name: after[name] - before[name] for name in ("appends", "records", "duplicates")} == {
        "appends": 1,
        "records": 2,
        "duplicates": 2,
    }
    assert after["append_bytes"] > before["append_bytes"]
    assert observed.value("bottomless_http_requests_total", **route) == requests + 2
    assert observed.value("bottomless_http_requests_total", route="other", status="404") >= 1
    assert observed.value("bottomless_manifest_publishes_total") >= 1
    assert observed.value("bottomless_ingest_fsync_seconds_count") >= 1
    assert observed.value("bottomless_object_store_calls_total", operation="put", outcome="ok") >= 1
    assert observed.value("bottomless_coordination_calls_total", operation="transact") >= 1
    assert observed.value("process_max_fds") >= 1
    shown = {
        value
        for family in observed.metrics().values()
        for sample in family.samples
        for value in sample.labels.values()
    }
    assert [value for value in shown if "counted-stream" in value or "nobody" in value] == []


def test_leaderless_streams_are_counted_from_the_append_to_the_bill(observed: Observed) -> None:
    """Each number that the dashboard and the alarms name is served, and moves when it should."""
    stage = "bottomless_ingest_wal_stage_seconds_count"
    answered = observed.value(stage, stage="answer")
    spent = observed.value("bottomless_object_store_dollars_total", operation="put")
    with observed.client() as client:
        config = {"profile": "leaderless"}
        client.put("/v1/streams/counted-leaderless", json=config).raise_for_status()
        append(client, "counted-leaderless", "a").raise_for_status()
        client.get(
            "/v1/streams/counted-leaderless/records", params={"offset": "first"}
        ).raise_for_status()
        begun = client.post("/v1/admin/gc", json={"dry_run": True}).raise_for_status().json()
        collection = f"/v1/operations/{begun['operation_id']}"
        until(lambda: client.get(collection).json()["state"] == "succeeded", what="the collection")
    with observed.internal("uploader") as uploader:
        uploader.post("/internal/v1/compact").raise_for_status()

    assert observed.value(stage, stage="answer") == answered + 1
    for one in ("linger", "put", "commit"):
        assert observed.value(stage, stage=one) >= 1
    for name, labels in {
        "ingest_wal_flushes_total": {"cause": "linger"},
        "ingest_wal_commits_total": {"outcome": "ok"},
        "ingest_wal_streams_count": {},
        "ingest_wal_object_bytes_sum": {},
        "compaction_rounds_total": {},
        "reader_wal_reads_total": {},
        "manifest_stored_objects": {"kind": "wal"},
        "manifest_stored_bytes": {"kind": "registry"},
        "manifest_stored_dollars_per_month": {"kind": "wal"},
    }.items():
        assert observed.value(f"bottomless_{name}", **labels) > 0, name
    assert observed.value("bottomless_object_store_dollars_total", operation="put") > spent

    families = observed.metrics()
    samples = {sample.name for family in families.values() for sample in family.samples}
    # Replicas and moves have no series where there are none: tests/deploy/test_grafana.py has theirs.
    asked = expressions(dashboards()["leaderless.json"])
    asked += [rule["expr"] for rule in rules()]
    for name in {name for one in asked for name in metrics_of(one)}:
        assert name in samples, name
    inside = f"http://127.0.0.1:{observed.metrics_port}"
    as_json = httpx.get(f"{inside}/metrics", headers={"accept": "application/json"}).json()
    assert as_json["metrics"].keys() == {
        f"{name}_total" if family.type == "counter" else name for name, family in families.items()
    }
    text = httpx.get(f"{inside}/metrics/prometheus", headers={"accept": "application/json"}).text
    assert f'{stage}{{stage="answer"}} ' in text


def test_a_request_can_be_followed_through_all_services_by_its_ids(observed: Observed) -> None:
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    headers = {
        "traceparent": f"00-{trace_id}-b7ad6b7169203331-01",
        "authorization": "Bearer a-secret-that-stays-one",
        # From outside nobody says what id a request has.
        "request-id": "chosen-by-a-stranger",
    }
    with observed.client() as client:
        client.put("/v1/streams/followed").raise_for_status()
        answer = client.get(
            "/v1/streams/followed/records", params={"offset": "first"}, headers=headers
        )
    request_id = answer.headers["request-id"]
    until(lambda: observed.lines(trace_id=trace_id, path="/v1/streams/followed/records"))

    lines = observed.lines(trace_id=trace_id, event="request")
    assert {line["request_id"] for line in lines} == {request_id} != {"chosen-by-a-stranger"}
    # The reader asked manifest for the stream and ingest for its end.
    assert any(line["path"].startswith("/internal/v1/streams/by-name/") for line in lines)
    assert any(line["path"].endswith("/chunks") for line in lines)
    assert len({line["span_id"] for line in lines}) == len(lines)
    assert all({"tenant", "actor", "status", "duration_ms"} <= line.keys() for line in lines)
    assert "a-secret-that-stays-one" not in observed.log()


def test_the_page_of_docs_brings_all_that_it_names(observed: Observed) -> None:
    with observed.client() as client:
        page = client.get("/docs")
        assert page.headers["content-type"].startswith("text/html")
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        named = re.findall(r'(?:src|href)="([^"]+)"', page.text)
        assert len(named) == 4
        named.remove("data:,")
        for path in named:
            asset = client.get(path)
            assert asset.status_code == 200, path
            assert len(asset.content) > 100, path
            assert asset.headers["x-content-type-options"] == "nosniff"
        start = client.get("/docs/start.js").text
        contract = re.search(r'url: "([^"]+)"', start)
        assert contract is not None
        assert "/v1/streams" in client.get(contract[1]).json()["paths"]
        assert client.post("/docs").status_code == 405
        assert "//" not in page.text.replace("<!doctype", "")
