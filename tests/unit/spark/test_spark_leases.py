"""Leases are taken where they can be, and a job that gets none reads all the same."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import orjson
import pytest

from bottomless.errors import OffsetGone, StoreError, Unavailable
from bottomless.model.names import StreamId, StreamName
from bottomless.spark.leases import Lease, renew_lease, return_lease, take_lease
from bottomless.spark.service import Source

GRANTED: tuple[int, dict[str, object]] = (
    201,
    {"lease_id": "ls_1", "expires_at": "2999-01-01T00:00:00.000Z"},
)


class Service(HTTPServer):
    """Answers requests alike, but for the first ones, and notes them."""

    answer = GRANTED

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[tuple[str, str, object]] = []
        self.before: list[tuple[int, dict[str, object]]] = []
        """What the first requests are answered with."""

    @property
    def source(self) -> Source:
        url = f"http://127.0.0.1:{self.server_port}"
        stream_id = StreamId("0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11")
        return Source(url, StreamName("orders"), stream_id)


class _Handler(BaseHTTPRequestHandler):
    server: Service

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        asked = (self.command, self.path, orjson.loads(body or "null"))
        self.server.asked.append(asked)
        before = self.server.before
        status, members = before.pop(0) if before else self.server.answer
        data = orjson.dumps(members)
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_POST = do_PUT = do_DELETE = _answer  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_a_lease_holds_from_an_offset_on_for_one_very_stream(service: Service) -> None:
    source = service.source
    assert take_lease(source, 7, 60) == Lease("ls_1", 60, 15)
    wanted = {
        "first_offset": 7,
        "ttl_seconds": 60,
        "holder": "spark",
        "expect_stream_id": source.stream_id,
    }
    assert service.asked == [("POST", "/v1/streams/orders/leases", wanted)]


def test_a_lease_that_the_service_made_shorter_is_renewed_earlier(service: Service) -> None:
    service.answer = 201, {"lease_id": "ls_1", "expires_at": "2020-01-01T00:00:00.000Z"}
    assert take_lease(service.source, 7, 3600) == Lease("ls_1", 3600, 0.25)


def test_no_time_means_no_lease(service: Service) -> None:
    assert take_lease(service.source, 7, 0) is None
    assert service.asked == []


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (403, "forbidden"),
        (429, "quota-exceeded"),
        (422, "offset-beyond-end"),
        (404, "not-found"),
        (405, "method-not-allowed"),
    ],
)
def test_a_job_that_gets_no_lease_reads_without(service: Service, status: int, code: str) -> None:
    service.answer = status, {"code": code}
    assert take_lease(service.source, 7, 60) is None


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (410, "range-condemned", OffsetGone),
        (500, "coordination-unavailable", Unavailable),
        (404, "stream-not-found", StoreError),
    ],
)
def test_what_a_job_has_to_know_is_raised(
    service: Service, status: int, code: str, kind: type[StoreError]
) -> None:
    service.answer = status, {"code": code}
    with pytest.raises(kind):
        take_lease(service.source, 7, 60)


def test_a_lease_is_asked_for_again_where_coordination_does_not_answer_for_a_moment(
    service: Service,
) -> None:
    service.before = [(503, {"code": "coordination-unavailable"})]
    assert take_lease(service.source, 7, 60) == Lease("ls_1", 60, 15)
    assert [method for method, _, _ in service.asked] == ["POST", "POST"]


def test_a_process_renews_a_lease_once_for_many_tasks(service: Service) -> None:
    lease = Lease("ls_many", 3600, 900)
    for _ in range(10):
        renew_lease(service.source, lease)
    assert service.asked == [("PUT", "/v1/streams/orders/leases/ls_many", {"ttl_seconds": 3600})]
    renew_lease(service.source, None)


def test_a_lease_that_ran_out_stops_no_task(service: Service) -> None:
    service.answer = 404, {"code": "lease-not-found"}
    renew_lease(service.source, Lease("ls_late", 1, 0.25))
    return_lease(service.source, Lease("ls_late", 1, 0.25))
    assert [method for method, _, _ in service.asked] == ["PUT", "DELETE"]
