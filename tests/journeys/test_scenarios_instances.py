"""Several processes of one service: scenarios A25, D1 with D11, and reads right after all restarted.

Four services behind nginx, and a second reader that is asked directly.
"""

from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest
from support.contract import ARROW, QUICK, Stream, new_stream
from support.processes import Process
from support.separate_processes import FourProcesses, four_processes
from support.waiting import until

SETTINGS = {
    "BOTTOMLESS_MANIFEST_FANOUT": "4",
    "BOTTOMLESS_INGEST_LOCAL_KEEP_MS": "1",
    "BOTTOMLESS_INGEST_SEGMENT_CHUNK_COUNT_MAX": "5",
    "BOTTOMLESS_PAGE_TOKEN_SECRET": "shared by both readers",
}
APPENDS = 20


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FourProcesses]:
    with four_processes(tmp_path_factory.mktemp("instances"), SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def second(deployment: FourProcesses) -> Iterator[Process]:
    with deployment.another("reader") as running:
        yield running


@pytest.fixture(scope="module")
def client(deployment: FourProcesses) -> Iterator[httpx.Client]:
    with deployment.client() as connected:
        yield connected


@pytest.fixture
def readers(deployment: FourProcesses, second: Process) -> Iterator[list[httpx.Client]]:
    """Each reader by itself, and the first one through nginx."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(each.client())
            for each in (deployment["reader"], second, deployment)
        ]


def strict(stream: Stream, first: int, count: int, who: str) -> httpx.Response:
    records = [{"value": f"{who} {number}"} for number in range(first, first + count)]
    headers = {"producer-id": who, "producer-seq": str(first)}
    return stream.client.post(stream.records, json={"records": records}, headers=headers)


@pytest.mark.parametrize("uploading", [False, True])
def test_a25_what_was_acknowledged_is_there_for_every_reader_at_once(
    client: httpx.Client, readers: list[httpx.Client], *, uploading: bool
) -> None:
    """A25: whichever is asked first, while records go on from the tail to object storage."""
    stream = new_stream(client, QUICK if uploading else None)
    for number in range(APPENDS):
        told = stream.append(str(number))
        described = client.get(stream.path).json()["offsets"]
        assert described == {"first": 0, "committed": number, "next": number + 1}
        for reader in readers[number % 3 :] + readers[: number % 3]:
            seen = Stream(reader, stream.name)
            page = seen.page(told["first_offset"])
            assert [record["value"] for record in page["records"]] == [str(number)]
            assert page["records"][0]["timestamp"] == told["timestamp"]
            assert page["up_to_date"] is True
            assert seen.page("last")["start_offset"] == number
            bounds = seen.bounds()
            assert (bounds["committed_offset"], bounds["next_offset"]) == (number, number + 1)
            one = reader.get(f"{stream.records}/{number}", headers={"accept": "application/json"})
            assert one.json()["value"] == str(number)
            arrow = reader.get(stream.records, params={"offset": number}, headers={"accept": ARROW})
            assert arrow.headers["stream-next-offset"] == str(number + 1)
        if uploading and number % 10 == 9:
            stream.wait_uploaded()
    if uploading:
        assert stream.bounds()["object_store_next_offset"] == APPENDS
    for reader in readers:
        walked, offset = [], 0
        while offset < APPENDS:
            page = Stream(reader, stream.name).page(offset)
            walked += [record["value"] for record in page["records"]]
            offset = page["next_offset"]
        assert walked == [str(number) for number in range(APPENDS)]


def test_a_list_begun_at_one_reader_goes_on_at_the_other(
    client: httpx.Client, readers: list[httpx.Client]
) -> None:
    """With one secret for both, their page tokens are the same."""
    stream = new_stream(client, QUICK)
    for number in range(3):
        stream.append(str(number))
        stream.wait_uploaded()
    path, parameters, found = f"{stream.path}/fragments", {"limit": "1"}, []
    for reader in readers:
        answer = reader.get(path, params=parameters)
        assert answer.status_code == 200, answer.text
        found += [item["first_offset"] for item in answer.json()["fragments"]]
        parameters["page_token"] = answer.json()["next_page_token"]
    assert found == [0, 1, 2]


def test_d11_a_repeat_is_one_after_a_restart_of_all_services(
    deployment: FourProcesses, second: Process, client: httpx.Client, readers: list[httpx.Client]
) -> None:
    """D1, D11; and M38: the first question after the restart is for the oldest records."""
    stream = new_stream(client, QUICK)
    first = strict(stream, 0, 10, "early")
    assert (first.status_code, first.json()["count"]) == (200, 10)
    for number in range(10):
        assert strict(stream, number, 1, "busy").status_code == 200
        stream.wait_uploaded()
    segments = deployment.ingest_dir / "streams" / first.json()["stream_id"]

    def moved_on() -> bool:
        return all(int(path.name[:20]) > 9 for path in segments.glob("*.segment"))

    until(moved_on, what="the first records freed")
    deployment.kill()
    second.kill()
    deployment.start()
    second.start()
    with second.client() as restarted:
        for reader in (*readers[::2], restarted):
            page = Stream(reader, stream.name).page("first", limit=10)
            assert [record["value"] for record in page["records"]] == [
                f"early {n}" for n in range(10)
            ]

    again = strict(stream, 0, 10, "early")
    assert again.status_code == 200, again.text
    assert again.headers["idempotent-replayed"] == "true"
    assert again.json() == {**first.json(), "count": 0, "duplicates": 10}
    # Nobody remembers where the first of many went, but that it was written.
    forgotten = strict(stream, 0, 1, "busy").json()
    assert (forgotten["first_offset"], forgotten["duplicates"]) == (None, 1)
    assert stream.next_offset() == 20
    assert strict(stream, 10, 1, "early").json()["first_offset"] == 20
