"""Streams are read page by page, however often a page has to be asked for."""

import httpx
import pytest

from bench.loadtest import reading as reading_module
from bench.loadtest.histogram import Histogram
from bench.loadtest.ledger import ProducerLedger
from bench.loadtest.reading import read_all

PAGE = 3


class Reader(httpx.AsyncBaseTransport):
    """Serves streams in pages, and fails at first as often as it is told."""

    def __init__(self, values: dict[str, list[str]], failures: int = 0) -> None:
        self.values = values
        self.failures = failures

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self.failures:
            self.failures -= 1
            if self.failures % 2:
                raise httpx.ReadError("gone")
            return httpx.Response(503, json={"code": "peer-unavailable"})
        first = int(request.url.params["offset"])
        all_of_it = self.values[request.url.path.split("/")[3]]
        found = all_of_it[first : first + PAGE]
        records = [{"offset": place, "value": value} for place, value in enumerate(found, first)]
        done = first + len(found) == len(all_of_it)
        return httpx.Response(200, json={"records": records, "up_to_date": done})


def acknowledged(count: int, producer: int) -> tuple[ProducerLedger, list[str]]:
    ledger = ProducerLedger(producer, 20)
    values = ledger.begin(count) if count else []
    if count:
        ledger.acknowledge(0, values)
    return ledger, values


@pytest.mark.parametrize("failures", [0, 5])
async def test_every_stream_is_read_to_its_end(
    failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading_module, "AGAIN_SECONDS", 0.0)
    counts = {"orders": 7, "empty": 0, "one": 1, "pages": 6}
    made = {name: acknowledged(count, place) for place, (name, count) in enumerate(counts.items())}
    reader = Reader({name: values for name, (_, values) in made.items()}, failures)
    latency = Histogram()
    ledgers = {name: [ledger] for name, (ledger, _) in made.items()}
    found = await read_all("http://reader", ledgers, latency, reader)
    assert [one.faults for one in found] == [[], [], [], []]
    assert {one.stream: one.next_offset for one in found} == counts
    assert latency.count == 3 + 1 + 1 + 2


async def test_a_stream_that_cannot_be_read_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_module, "PATIENCE_SECONDS", 0.0)
    ledger, _ = acknowledged(2, 0)
    [found] = await read_all("http://reader", {"orders": [ledger]}, Histogram(), Reader({}, 9))
    assert "orders: cannot be read from 0" in found.faults[0]
    assert found.fault_count == 1
