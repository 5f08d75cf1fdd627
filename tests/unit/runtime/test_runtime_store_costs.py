"""What the object store is paid: requests as a bill counts them, at the prices that are set."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from support.metrics import samples

from bottomless.formats.checks import crc32c
from bottomless.model.limits import GIB
from bottomless_server.core.store_prices import (
    REQUESTS,
    StorePrices,
    dollars_of_calls,
    dollars_of_month,
    parse_prices,
)
from bottomless_server.drives.memory import MemoryDrive
from bottomless_server.runtime.base.settings import CommonSettings
from bottomless_server.runtime.observe.measured_ports import measured_drive
from bottomless_server.runtime.observe.metrics import Metrics

prices = st.builds(StorePrices, *(st.floats(0, 1000) for _ in StorePrices._fields))


def of_text(found: StorePrices) -> str:
    return ",".join(f"{name}={price!r}" for name, price in found._asdict().items())


@given(prices)
def test_prices_are_read_as_they_are_written(found: StorePrices) -> None:
    assert parse_prices(of_text(found)) == found


def test_what_is_not_named_is_the_default() -> None:
    assert parse_prices("") == StorePrices() == CommonSettings().prices
    assert parse_prices(" put=1 , month=2,") == StorePrices()._replace(put=1, month=2)


@pytest.mark.parametrize(
    "text", ["put", "put=", "put=free", "copy=1", "put=1,put=1", "get=-1", "get=nan", "get=1e9"]
)
def test_a_price_that_is_none_is_refused_at_the_start(text: str) -> None:
    with pytest.raises(ValueError, match="price"):
        parse_prices(text)
    with pytest.raises(ValidationError, match="store_prices"):
        CommonSettings(store_prices=text)


def test_a_bill_of_requests_bytes_and_months() -> None:
    given = StorePrices(put=5, list=4, get=3, head=2, delete=1, written=0.5, read=0.25, month=2)
    requests = {"put": 1_000, "list": 500, "get": 2_000, "head": 1}
    bill = dollars_of_calls(given, requests, written=2 * GIB, read=GIB)
    charged = {"put": 5, "list": 2, "get": 6, "head": 0.002, "delete": 0}
    assert bill == charged | {"written": 1, "read": 0.25}
    assert dollars_of_month(given, GIB // 2) == 1


def test_dollars_are_shown_as_somebody_would_write_them() -> None:
    bill = dollars_of_calls(StorePrices(), {"put": 18, "get": 22}, written=0, read=0)
    assert (bill["put"], bill["get"]) == (9e-05, 8.8e-06)


@given(st.dictionaries(st.sampled_from(REQUESTS), st.integers(0, 10**9)), prices)
def test_processes_can_be_added_up(requests: Mapping[str, int], found: StorePrices) -> None:
    one = dollars_of_calls(found, requests, written=3, read=4)
    two = dollars_of_calls(found, {k: 2 * n for k, n in requests.items()}, written=6, read=8)
    assert two == pytest.approx({name: 2 * dollars for name, dollars in one.items()})


async def test_a_drive_that_sends_nothing_counts_what_s3_would_be_sent() -> None:
    metrics, memory = Metrics(), MemoryDrive()
    drive = measured_drive(memory, metrics, StorePrices(put=1, list=10, written=GIB))
    for number in range(1_001):
        await drive.put(f"a/{number:04}", [b"1234"], crc32c(b"1234"))
    assert len([facts async for facts in drive.list("a/")]) == 1_001
    await drive.get("a/0001")
    await drive.head("a/0001")
    await drive.delete([f"a/{number:04}" for number in range(1_001)])
    assert [facts async for facts in drive.list("a/")] == []

    shown = samples(metrics.registry.collect())
    name = "bottomless_object_store"
    counts = {kind: shown[f"{name}_requests_total", ("operation", kind)] for kind in REQUESTS}
    assert counts == {"put": 1_001, "list": 3, "get": 1, "head": 1, "delete": 2}
    assert shown[f"{name}_dollars_total", ("operation", "put")] == pytest.approx(1.001)
    assert shown[f"{name}_dollars_total", ("operation", "list")] == pytest.approx(0.03)
    assert shown[f"{name}_dollars_total", ("operation", "written")] == pytest.approx(4_004)


class Sending(MemoryDrive):
    """A drive that tells by itself what it sends."""

    def __init__(self) -> None:
        super().__init__()
        self.requests = {"put": 7}


async def test_a_drive_that_counts_its_requests_is_believed() -> None:
    metrics = Metrics()
    drive = measured_drive(Sending(), metrics)
    await drive.put("a/b", [b"1"], crc32c(b"1"))
    shown = samples(metrics.registry.collect())
    assert shown["bottomless_object_store_requests_total", ("operation", "put")] == 7
    assert shown["bottomless_object_store_requests_total", ("operation", "get")] == 0
